from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from vllm_lite.config import (
    CacheConfig,
    DeviceConfig,
    LoadConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm_lite.exceptions import VLLMValidationError

BAD = [
    (CacheConfig, "block_size", 0),
    (CacheConfig, "block_size", 16.0),
    (CacheConfig, "gpu_memory_utilization", 0),
    (CacheConfig, "gpu_memory_utilization", 1.01),
    (CacheConfig, "gpu_memory_utilization", float("nan")),
    (CacheConfig, "enable_prefix_caching", 1),
    (CacheConfig, "kv_cache_memory_bytes", 0),
    (CacheConfig, "kv_cache_memory_bytes", "1G"),
    (CacheConfig, "num_gpu_blocks_override", 1),
    (SchedulerConfig, "max_num_batched_tokens", 0),
    (SchedulerConfig, "max_num_seqs", 0),
    (SchedulerConfig, "max_num_seqs", True),
    (SchedulerConfig, "long_prefill_token_threshold", -1),
    (SchedulerConfig, "stream_interval", 0),
    (SchedulerConfig, "enable_chunked_prefill", "yes"),
    (SchedulerConfig, "scheduler_reserve_full_isl", None),
    (SchedulerConfig, "async_scheduling", 1),
    (SchedulerConfig, "policy", "lifo"),
    (SchedulerConfig, "max_num_queued_reqs", 0),
    (SchedulerConfig, "max_num_queued_tokens", 0.5),
    (ParallelConfig, "data_parallel_size", 0),
    (ParallelConfig, "data_parallel_rank", 1),
    (ParallelConfig, "data_parallel_rank", -1),
    (ParallelConfig, "world_size", 0),
    (ParallelConfig, "distributed_executor_backend", "ray"),
    (ParallelConfig, "distributed_executor_backend", "a module:Class"),
    (ParallelConfig, "distributed_executor_backend", 5),
    (ParallelConfig, "api_process_count", 0),
    (ParallelConfig, "api_process_rank", 1),
    (ObservabilityConfig, "trace_level", 4),
    (ObservabilityConfig, "trace_level", -1),
    (ObservabilityConfig, "trace_level", "3"),
    (ObservabilityConfig, "trace_keep", None),
    (ObservabilityConfig, "trace_steps", "some"),
    (ObservabilityConfig, "trace_steps", "1.5"),
    (ObservabilityConfig, "trace_steps", "nan"),
    (ObservabilityConfig, "trace_steps", None),
    (ObservabilityConfig, "trace_steps", 0.5),
    (ObservabilityConfig, "trace_dir", 5),
    (ObservabilityConfig, "trace_dir", "\0"),
    (ObservabilityConfig, "otlp_traces_endpoint", 5),
    (ObservabilityConfig, "otlp_traces_endpoint", "\ud800"),
]


@pytest.mark.parametrize(("part", "field", "value"), BAD)
def test_a_bad_value_is_refused_by_name(part: type, field: str, value: Any) -> None:
    with pytest.raises(VLLMValidationError, match=rf"^{field} must be ") as caught:
        part(**{field: value})
    assert caught.value.parameter == field


def test_a_cache_of_edge_values() -> None:
    assert CacheConfig(gpu_memory_utilization=1, num_gpu_blocks_override=2, kv_cache_memory_bytes=1).block_size == 16
    assert CacheConfig().num_gpu_blocks is None


def test_a_step_must_have_room_for_one_token_of_each_request() -> None:
    SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=8)
    with pytest.raises(VLLMValidationError, match=r"^max_num_batched_tokens must be >= max_num_seqs, which is 9; got 8$"):
        SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=9)


def test_the_last_rank_is_the_size_less_one() -> None:
    config = ParallelConfig(data_parallel_size=2, data_parallel_rank=1, data_parallel_external_lb=True)
    assert config.data_parallel_rank == 1
    assert list(config.engine_indexes) == [1]


def test_an_executor_of_ones_own_is_named_by_its_module() -> None:
    assert ParallelConfig(distributed_executor_backend="my.module:Outer.Class").engine_indexes == range(1)


def test_a_rank_has_no_effect_where_all_engine_cores_are_behind_one_front_end() -> None:
    with pytest.raises(VLLMValidationError, match="data_parallel_rank must be 0 without --data-parallel-external-lb"):
        ParallelConfig(data_parallel_size=2, data_parallel_rank=1)


@pytest.mark.parametrize("value", ["sampled", "all", "off", "0", "0.1", "1"])
def test_trace_steps(value: str) -> None:
    assert ObservabilityConfig(trace_steps=value).trace_steps == value


@pytest.mark.parametrize(
    ("endpoint", "asked", "level"),
    [(None, None, 0), ("http://localhost:4317", None, 1), ("http://localhost:4317", 0, 0), (None, 3, 3)],
)
def test_the_level_a_run_starts_with(endpoint: str | None, asked: int | None, level: int) -> None:
    assert ObservabilityConfig(otlp_traces_endpoint=endpoint, trace_level=asked).level == level


def test_the_whole_configuration_crosses_a_border_unchanged(tiny_model_path: Path) -> None:
    config = VllmConfig(ModelConfig("tiny", model_path=str(tiny_model_path)), additional_config={"toy_step_time": 0.5})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=VllmConfig) == config


def test_a_whole_prompt_must_fit_a_step_where_it_is_not_chunked(tiny_model_path: Path) -> None:
    model = ModelConfig("tiny", model_path=str(tiny_model_path), max_model_len=4000)
    with pytest.raises(
        VLLMValidationError, match=r"^max_num_batched_tokens must be >= max_model_len \(4000\) where .* is off; got 3999$"
    ):
        VllmConfig(model, scheduler_config=SchedulerConfig(max_num_batched_tokens=3999, enable_chunked_prefill=False))
    VllmConfig(model, scheduler_config=SchedulerConfig(max_num_batched_tokens=4000, enable_chunked_prefill=False))
    VllmConfig(model, scheduler_config=SchedulerConfig(max_num_batched_tokens=3999))


def test_load_format_and_device_are_choices() -> None:
    with pytest.raises(VLLMValidationError, match=r"^load_format must be one of 'auto', .*; got 'pickle'$"):
        LoadConfig("pickle")
    with pytest.raises(VLLMValidationError, match=r"^device must be one of 'auto', 'cpu', 'cuda'; got 'tpu'$"):
        DeviceConfig("tpu")
