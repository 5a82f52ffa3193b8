"""The whole configuration in one value.

Process: all. Knows: its parts and the rules between them. Does not know: the engine.
Mirrors: vllm/config/vllm.py, vllm/config/load.py, vllm/config/device.py
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm_lite.config.cache import CacheConfig
from vllm_lite.config.checks import check_choice, check_number, refuse
from vllm_lite.config.model import ModelConfig
from vllm_lite.config.observability import ObservabilityConfig
from vllm_lite.config.parallel import ParallelConfig
from vllm_lite.config.scheduler import SchedulerConfig

LOAD_FORMATS = ("auto", "safetensors", "dummy")
DEVICES = ("auto", "cpu", "cuda")


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
        scheduler, model = self.scheduler_config, self.model_config
        room = scheduler.max_num_batched_tokens
        if not scheduler.enable_chunked_prefill and room < (model.max_model_len or 0):
            accepted = f">= max_model_len ({model.max_model_len}) where enable_chunked_prefill is off"
            raise refuse("max_num_batched_tokens", room, accepted)
