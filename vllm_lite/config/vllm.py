"""The whole configuration in one value, and all of its parts but the model's.

Process: all. Knows: names, sizes, limits, and the rules between them. Does not know: the engine.
Mirrors: vllm/config/vllm.py, cache.py, scheduler.py, parallel.py, load.py, device.py, observability.py
"""

import re
from dataclasses import dataclass, field
from typing import Any

from vllm_lite.config.checks import check_bool, check_choice, check_int, check_number, check_path, check_text, refuse
from vllm_lite.config.model import ModelConfig

POLICIES = ("fcfs", "priority")
EXECUTOR_BACKENDS = ("uni", "mp", "toy")
LOAD_FORMATS = ("auto", "safetensors", "dummy")
DEVICES = ("auto", "cpu", "cuda")


@dataclass
class CacheConfig:
    """Sizes of the paged KV cache.

    `num_gpu_blocks` is None until the worker has measured (or `num_gpu_blocks_override` or `kv_cache_memory_bytes` has fixed)
    how many blocks fit; READY brings it to the front end. vLLM's name is kept although the blocks may lie in CPU memory.
    """

    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool = True
    num_gpu_blocks: int | None = None

    def __post_init__(self) -> None:
        check_int("block_size", self.block_size, 1)
        check_number("gpu_memory_utilization", self.gpu_memory_utilization, 0, 1, above_low=True)
        check_bool("enable_prefix_caching", self.enable_prefix_caching)
        check_int("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1, optional=True)
        check_int("num_gpu_blocks_override", self.num_gpu_blocks_override, 2, optional=True)


@dataclass
class SchedulerConfig:
    """How much work one step may hold, and the queues.

    `async_scheduling` None means: on where the executor's `execute_model` returns at once, off where it runs inline.
    `max_num_queued_reqs` and `max_num_queued_tokens` are admission control; None admits everything.
    """

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: str = "fcfs"
    async_scheduling: bool | None = None
    scheduler_reserve_full_isl: bool = True
    stream_interval: int = 1
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None

    def __post_init__(self) -> None:
        check_int("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        check_int("max_num_seqs", self.max_num_seqs, 1)
        check_int("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        check_int("stream_interval", self.stream_interval, 1)
        check_int("max_num_queued_reqs", self.max_num_queued_reqs, 1, optional=True)
        check_int("max_num_queued_tokens", self.max_num_queued_tokens, 1, optional=True)
        check_bool("enable_chunked_prefill", self.enable_chunked_prefill)
        check_bool("scheduler_reserve_full_isl", self.scheduler_reserve_full_isl)
        check_bool("async_scheduling", self.async_scheduling, optional=True)
        check_choice("policy", self.policy, POLICIES)
        room, seqs = self.max_num_batched_tokens, self.max_num_seqs
        if room < seqs:
            raise refuse("max_num_batched_tokens", room, f">= max_num_seqs, which is {seqs}")


@dataclass
class ParallelConfig:
    """Engines (data parallel), workers (`world_size`) of each, and what drives these.

    `distributed_executor_backend`: "uni" runs the worker inside the engine core's process, "mp" in processes of its own, "toy"
    replaces it by the torch-free toy executor; "module:Class" is an Executor of your own.
    `api_process_rank` is this front end's number among the `api_process_count` that share the engines.
    """

    data_parallel_size: int = 1
    data_parallel_rank: int = 0
    data_parallel_external_lb: bool = False
    world_size: int = 1
    distributed_executor_backend: str = "uni"
    api_process_count: int = 1
    api_process_rank: int = 0

    def __post_init__(self) -> None:
        check_int("data_parallel_size", self.data_parallel_size, 1)
        check_int("data_parallel_rank", self.data_parallel_rank, 0, self.data_parallel_size - 1)
        check_bool("data_parallel_external_lb", self.data_parallel_external_lb)
        if self.data_parallel_rank and not self.data_parallel_external_lb:
            raise refuse("data_parallel_rank", self.data_parallel_rank, "0 without --data-parallel-external-lb")
        check_int("world_size", self.world_size, 1)
        accepted = f"one of {', '.join(EXECUTOR_BACKENDS)}, or an Executor's module:Class"
        backend = check_text("distributed_executor_backend", self.distributed_executor_backend, accepted)
        if backend not in EXECUTOR_BACKENDS and not re.fullmatch(r"[\w.]+:[\w.]+", backend):
            raise refuse("distributed_executor_backend", backend, accepted)
        check_int("api_process_count", self.api_process_count, 1)
        check_int("api_process_rank", self.api_process_rank, 0, self.api_process_count - 1)

    @property
    def engine_indexes(self) -> range:
        """The engine cores behind this front end."""
        if self.data_parallel_external_lb:
            return range(self.data_parallel_rank, self.data_parallel_rank + 1)
        return range(self.data_parallel_size)


@dataclass
class LoadConfig:
    """Where weights come from: "safetensors" (which is what "auto" finds), or "dummy" (seeded random values)."""

    load_format: str = "auto"

    def __post_init__(self) -> None:
        check_choice("load_format", self.load_format, LOAD_FORMATS)


@dataclass
class DeviceConfig:
    """Where the worker computes: "auto" (CUDA where there is one, else the CPU), "cpu" or "cuda"."""

    device: str = "auto"

    def __post_init__(self) -> None:
        check_choice("device", self.device, DEVICES)


@dataclass
class ObservabilityConfig:
    """What is recorded of a request's journey, and where it goes.

    `trace_level`: 0 off, 1 requests, phases and steps, 2 also tokens and mailbox events, 3 also one child span per request and
    step. None means 1 where an endpoint is set, else 0. `trace_dir` is the run directory (made by whoever builds the engine);
    `trace_keep` keeps its spools after they were exported. `trace_steps` samples steps: "sampled" (those that hold a sampled
    request), "all", "off", or a ratio such as "0.1".
    """

    otlp_traces_endpoint: str | None = None
    trace_level: int | None = None
    trace_dir: str | None = None
    trace_keep: bool = False
    trace_steps: str = "sampled"

    def __post_init__(self) -> None:
        check_int("trace_level", self.trace_level, 0, 3, optional=True)
        check_path("trace_dir", self.trace_dir, optional=True)
        check_text("otlp_traces_endpoint", self.otlp_traces_endpoint, optional=True)
        check_bool("trace_keep", self.trace_keep)
        if self.trace_steps not in ("sampled", "all", "off"):
            try:
                in_range = isinstance(self.trace_steps, str) and 0.0 <= float(self.trace_steps) <= 1.0
            except ValueError:
                in_range = False
            if not in_range:
                raise refuse("trace_steps", self.trace_steps, "'sampled', 'all', 'off' or a ratio from 0 to 1, as a string")

    @property
    def level(self) -> int:
        """The level the run starts with; the control page can change it later."""
        if self.trace_level is not None:
            return self.trace_level
        return 1 if self.otlp_traces_endpoint else 0


@dataclass
class VllmConfig:
    """Everything an engine is built from. `additional_config` carries settings of plug-in executors, as in vLLM.

    An engine core that is told to end gives its requests up after `shutdown_timeout` seconds; 0: at once.
    """

    model_config: ModelConfig
    cache_config: CacheConfig = field(default_factory=CacheConfig)
    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel_config: ParallelConfig = field(default_factory=ParallelConfig)
    load_config: LoadConfig = field(default_factory=LoadConfig)
    device_config: DeviceConfig = field(default_factory=DeviceConfig)
    observability_config: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    additional_config: dict[str, Any] = field(default_factory=dict)
    shutdown_timeout: float = 0.0

    def __post_init__(self) -> None:
        check_number("shutdown_timeout", self.shutdown_timeout, 0.0)
        if not isinstance(self.additional_config, dict):
            raise refuse("additional_config", self.additional_config, "a dictionary")
        scheduler, model = self.scheduler_config, self.model_config
        room = scheduler.max_num_batched_tokens
        if not scheduler.enable_chunked_prefill and room < (model.max_model_len or 0):
            accepted = f">= max_model_len ({model.max_model_len}) where enable_chunked_prefill is off"
            raise refuse("max_num_batched_tokens", room, accepted)
