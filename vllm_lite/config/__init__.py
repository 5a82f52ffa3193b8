"""Plain values that say how an engine is to be built; they cross every process border as msgpack.

Process: all (made in the front end, sent in the handshake). Knows: numbers, strings and their limits. Does not know: torch,
zmq, any class of the engine.
Mirrors: vllm/config/__init__.py
"""

from vllm_lite.config.cache import CacheConfig
from vllm_lite.config.model import ModelConfig
from vllm_lite.config.observability import ObservabilityConfig
from vllm_lite.config.parallel import ParallelConfig
from vllm_lite.config.scheduler import SchedulerConfig
from vllm_lite.config.vllm import DeviceConfig, LoadConfig, VllmConfig

__all__ = [
    "CacheConfig",
    "DeviceConfig",
    "LoadConfig",
    "ModelConfig",
    "ObservabilityConfig",
    "ParallelConfig",
    "SchedulerConfig",
    "VllmConfig",
]
