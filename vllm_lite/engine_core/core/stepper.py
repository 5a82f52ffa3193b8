"""Scheduler and executor, one step after another.

Process: engine core (or the front end's, for an engine in process). Knows: the order of a step, and what may happen between its
stages. Does not know: sockets, threads, or who asked.
Mirrors: vllm/v1/engine/core.py (EngineCore: its steps)
"""

import logging
import os
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import NamedTuple

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import check_token_ids, refuse
from vllm_lite.engine_core.core.step_tracer import StepStamp, StepTracer
from vllm_lite.engine_core.executor.abstract import Executor, FailureCallback
from vllm_lite.engine_core.kv_cache_utils import get_kv_cache_config, get_request_block_hasher
from vllm_lite.engine_core.request import Request, RequestStatus
from vllm_lite.engine_core.scheduler import Scheduler
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.recorder import now_ns
from vllm_lite.wire.kv_cache_interface import KVCacheConfig
from vllm_lite.wire.messages import (
    PROTOCOL_VERSION,
    EngineCoreAbort,
    EngineCoreOutputs,
    EngineCoreReadyResponse,
    EngineCoreRequest,
)
from vllm_lite.wire.step import ModelRunnerOutput, SchedulerOutput

logger = logging.getLogger(__name__)


class StepInFlight(NamedTuple):
    """A step that was handed to the workers; `sampled` is None where it only brings them news."""

    plan: SchedulerOutput
    stamp: StepStamp | None
    executed: Future[ModelRunnerOutput | None]
    sampled: Future[ModelRunnerOutput] | None

    def result(self) -> ModelRunnerOutput:
        """Wait for it; raises what the workers raised, the forward pass first."""
        output = self.executed.result()
        if self.sampled is not None:
            output = self.sampled.result()
        assert output is not None
        return output


class Stepper:
    """The half of EngineCore that answers requests: builds the executor and the scheduler; `step()` does the rest.

    The constructor returns once the model is loaded and the KV cache allocated. Its errors are those of the executor and of
    the configuration; nothing is left behind then. `aborts_queue` may be filled by another thread while a step runs.
    """

    engine_index = 0

    def __init__(
        self, vllm_config: VllmConfig, executor_class: type[Executor], executor_fail_callback: FailureCallback | None = None
    ) -> None:
        self.vllm_config = vllm_config
        self.weight_version: str | None = None  # until somebody names the weights
        observability = vllm_config.observability_config
        self.step_tracer = StepTracer(observability.trace_dir, observability.trace_steps)
        self.aborts_queue: SimpleQueue[EngineCoreAbort] = SimpleQueue()
        scheduling = vllm_config.scheduler_config
        scheduling.async_scheduling = _async_scheduling(scheduling.async_scheduling, executor_class)
        self.batch_queue: deque[StepInFlight] = deque()  # what runs or waits for the workers
        t0 = now_ns()
        self.model_executor = executor_class(vllm_config)
        self.max_concurrent_batches = self.model_executor.max_concurrent_batches if scheduling.async_scheduling else 1
        self.step_tracer.phase("build_executor", t0)
        try:
            if executor_fail_callback is not None:
                self.model_executor.register_failure_callback(executor_fail_callback)
            self.kv_cache_config = self._initialize_kv_caches()
            self.scheduler = Scheduler(vllm_config, self.kv_cache_config)
            self.worker_info = self.model_executor.worker_info()
        except BaseException:
            self.model_executor.shutdown()
            raise
        cache = vllm_config.cache_config
        self._block_hasher = get_request_block_hasher(cache.block_size) if cache.enable_prefix_caching else None

    def _initialize_kv_caches(self) -> KVCacheConfig:
        """Size the KV cache by the configuration, else by what the worker says is free, and let the worker allocate it."""
        executor, cache = self.model_executor, self.vllm_config.cache_config
        t0 = now_ns()
        sizes = ("num_gpu_blocks_override", "kv_cache_memory_bytes")
        fixed = next((name for name in sizes if getattr(cache, name) is not None), None)
        specs = executor.get_kv_cache_specs()
        available_bytes = None if fixed else executor.determine_available_memory()
        kv_cache_config = get_kv_cache_config(self.vllm_config, specs, available_bytes)
        cache.num_gpu_blocks = kv_cache_config.num_blocks
        try:
            executor.initialize_from_config(kv_cache_config)
        except Exception as error:
            if fixed is None:
                raise
            raise refuse(fixed, getattr(cache, fixed), f"no more than the worker can allocate ({error})") from error
        self.step_tracer.phase("initialize_kv_caches", t0)
        tokens = (kv_cache_config.num_blocks - 1) * cache.block_size
        logger.info("KV cache: %d blocks, %d tokens", kv_cache_config.num_blocks, tokens)
        return kv_cache_config

    def ready(self) -> EngineCoreReadyResponse:
        """What a front end is told of this engine core."""
        config, kv, info = self.vllm_config, self.kv_cache_config, self.worker_info
        return EngineCoreReadyResponse(
            PROTOCOL_VERSION,
            self.engine_index,
            os.getpid(),
            self.scheduler.max_model_len,
            kv.num_blocks,
            config.cache_config.block_size,
            info["dtype"],
            info["device"],
            config.model_config.vocab_size,
            config.parallel_config.distributed_executor_backend,
            self.max_concurrent_batches,
            kv.num_blocks * kv.bytes_per_block,
            info["weights_bytes"],
            info["attention_backend"],
            info["load_seconds"],
            self.get_supported_tasks(),
        )

    # ---- requests ------------------------------------------------------------------------------------------------------------

    def preprocess_add_request(self, request: EngineCoreRequest) -> Request:
        """Check a letter and turn it into a request, block hashes included; called off the main thread.

        Raises VLLMValidationError for what would hurt the step it is in; the front end has refused all of it before.
        """
        max_model_len = self.scheduler.max_model_len
        prompt = request.prompt_token_ids
        if not prompt:
            raise VLLMValidationError("prompt_token_ids must hold at least one token", parameter="prompt_token_ids")
        if (request.sampling_params is None) == (request.pooling_params is None):
            raise VLLMValidationError("a request has either sampling_params or pooling_params", parameter="sampling_params")
        if request.pooling_params is not None and "embed" not in self.get_supported_tasks():
            raise refuse("pooling_params", request.pooling_params, "absent: this engine's worker does not pool")
        longest = max_model_len if request.sampling_params is None else max_model_len - 1
        if len(prompt) > longest:
            raise refuse("prompt_token_ids", f"{len(prompt)} tokens", f"at most {longest} tokens long")
        model = self.vllm_config.model_config
        check_token_ids("prompt_token_ids", prompt, model.vocab_size)
        if request.sampling_params is not None:
            request.sampling_params.check_model(model.vocab_size, model.max_logprobs)
        return Request.from_engine_core_request(request, self._block_hasher)

    def add_request(self, request: Request) -> None:
        """Let a request wait for its first step. Raises ValueError where one of its id is here already."""
        self.scheduler.add_request(request)
        self.step_tracer.enter(request)

    def abort_requests(self, request_ids: Iterable[str] | None, reason: str = "api") -> list[Request]:
        """Give requests up (None: all), in whatever state; returns those that were still here. Unknown ids are no error."""
        requests = self.scheduler.requests
        ids = list(requests) if request_ids is None else [i for i in dict.fromkeys(request_ids) if i in requests]
        for request_id in ids:
            request = requests[request_id]
            if request.trace is not None and request.status != RequestStatus.WAITING_FOR_STREAMING_REQ:  # that part has left
                self.step_tracer.leave(request.trace, request_id, reason, request.status.name.lower())
        return self.scheduler.finish_requests(ids, RequestStatus.FINISHED_ABORTED)

    # ---- a step --------------------------------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        """True while there is a step to plan or a result to wait for."""
        return bool(self.batch_queue) or self.scheduler.has_requests()

    def step(self) -> dict[int, EngineCoreOutputs]:
        """Plan a step and hand it to the workers, then wait for the oldest in flight, unless there is room for another one: a
        bag for each client that gets something.

        So, with async scheduling, the workers have their next step while the result of the last one is looked at. Aborts that
        arrived while the model ran are applied before its result, so that they win over a last token.
        """
        queue = self.batch_queue
        if self.scheduler.has_requests():
            step = self._dispatch()
            if step is not None:
                queue.append(step)
                if step.sampled is not None and len(queue) < self.max_concurrent_batches:
                    return {}
        return self._finish(queue.popleft()) if queue else {}

    def _dispatch(self) -> StepInFlight | None:
        """Plan a step and hand it to the workers; None where it holds nothing at all."""
        tracer = self.step_tracer
        t0 = tracer.begin()
        plan = self.scheduler.schedule()
        stamp = tracer.scheduled(t0, self.scheduler, plan) if t0 else None
        if not (plan.num_scheduled_tokens or plan.finished_req_ids or plan.preempted_req_ids):
            return None
        executed = self.model_executor.execute_model(plan)
        sampled = self.model_executor.sample_tokens() if plan.num_scheduled_tokens else None
        return StepInFlight(plan, stamp, executed, sampled)

    def _finish(self, step: StepInFlight) -> dict[int, EngineCoreOutputs]:
        """Wait for a step's result and tell the scheduler."""
        result = step.result()
        if step.stamp is not None:
            self.step_tracer.executed(step.stamp)
        self._process_aborts_queue()
        t0 = now_ns()
        bags = self.scheduler.update_from_output(step.plan, result)
        if self.weight_version is not None:
            for bag in bags.values():
                bag.weight_version = self.weight_version
        self.step_tracer.updated(t0, step.stamp, bags, self.scheduler.stale_tokens)
        return bags

    def _process_aborts_queue(self) -> None:
        while not self.aborts_queue.empty():
            abort = self.aborts_queue.get()
            self.abort_requests(abort.request_ids, abort.reason)

    # ---- facts and the end ---------------------------------------------------------------------------------------------------

    def get_supported_tasks(self) -> list[str]:
        """What the worker can do: "generate", perhaps also "embed"."""
        return list(self.worker_info.get("supported_tasks", ["generate"]))

    def shutdown(self, error: BaseException | None = None) -> None:
        """Free the workers and close the spool; `error` is what made this the end. May be called more than once."""
        t0 = now_ns()
        self.model_executor.shutdown()
        self.step_tracer.close(t0, error)


def _async_scheduling(asked: bool | None, executor_class: type[Executor]) -> bool:
    """Whether steps are planned ahead; refused where the executor runs each inside the call."""
    if asked and executor_class.max_concurrent_batches == 1:
        raise refuse(
            "async_scheduling", True, f"False or left out with {executor_class.__name__}, which runs one step at a time"
        )
    return executor_class.async_scheduling_by_default if asked is None else asked
