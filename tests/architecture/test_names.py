"""Code written against vLLM needs little more than another import: each name lies in our file of vLLM's file name."""

from __future__ import annotations

import importlib

import pytest

PLACES = {
    "vllm_lite": "AsyncEngineArgs AsyncLLM EngineArgs EngineDeadError EngineGenerateError LLM PoolingParams RequestOutput "
    "RequestOutputKind SamplingParams VllmConfig",
    "vllm_lite.config": "CacheConfig ModelConfig ObservabilityConfig ParallelConfig SchedulerConfig VllmConfig",
    "vllm_lite.engine_args": "AsyncEngineArgs EngineArgs",
    "vllm_lite.outputs": "CompletionOutput PoolingRequestOutput RequestOutput STREAM_FINISHED",
    "vllm_lite.exceptions": "EngineDeadError EngineGenerateError",
    "vllm_lite.sampling_params": "RequestOutputKind SamplingParams",
    "vllm_lite.pooling_params": "PoolingParams",
    "vllm_lite.entrypoints.llm": "LLM",
    "vllm_lite.frontend.protocol": "EngineClient",
    "vllm_lite.frontend.async_llm": "AsyncLLM",
    "vllm_lite.frontend.llm_engine": "LLMEngine",
    "vllm_lite.frontend.input_processor": "InputProcessor",
    "vllm_lite.frontend.output_processor": "OutputProcessor OutputProcessorOutput RequestOutputCollector RequestState",
    "vllm_lite.frontend.detokenizer": "IncrementalDetokenizer",
    "vllm_lite.frontend.logprobs": "LogprobsProcessor",
    "vllm_lite.frontend.parallel_sampling": "ParentRequest",
    "vllm_lite.frontend.core_client": "AsyncMPClient BackgroundResources DPAsyncMPClient DPLBAsyncMPClient EngineCoreClient "
    "InprocClient SyncMPClient",
    "vllm_lite.engine_core.core": "EngineCore EngineCoreProc",
    "vllm_lite.engine_core.coordinator": "DPCoordinator",
    "vllm_lite.engine_core.scheduler": "Scheduler",
    "vllm_lite.engine_core.request": "Request RequestStatus",
    "vllm_lite.engine_core.kv_cache_manager": "KVCacheBlocks KVCacheManager",
    "vllm_lite.engine_core.kv_cache_utils": "FreeKVCacheBlockQueue KVCacheBlock",
    "vllm_lite.engine_core.block_pool": "BlockPool",
    "vllm_lite.engine_core.executor.abstract": "Executor",
    "vllm_lite.engine_core.executor.uniproc_executor": "UniProcExecutor",
    "vllm_lite.engine_core.executor.multiproc_executor": "MultiprocExecutor",
    "vllm_lite.wire.messages": "EngineCoreEvent EngineCoreOutput EngineCoreOutputs EngineCoreReadyResponse EngineCoreRequest "
    "EngineCoreRequestType FinishReason UtilityOutput",
    "vllm_lite.wire.step": "ModelRunnerOutput SchedulerOutput",
    "vllm_lite.wire.serial_utils": "MsgpackDecoder MsgpackEncoder",
    "vllm_lite.wire.kv_cache_interface": "FullAttentionSpec KVCacheConfig KVCacheGroupSpec",
    "vllm_lite.metrics.loggers": "LoggingStatLogger PrometheusStatLogger StatLoggerBase StatLoggerManager",
    "vllm_lite.metrics.stats": "IterationStats SchedulerStats",
}


@pytest.mark.parametrize("module", PLACES)
def test_a_file_of_vllms_name_has_its_names(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in PLACES[module].split() if not hasattr(found, name)] == []
