"""Plain values that say how an engine is to be built; they cross every process border as msgpack.

Process: all (made in the front end, sent in the handshake). Knows: numbers, strings and their limits. Does not know: torch,
zmq, any class of the engine.
Mirrors: vllm/config/__init__.py
"""

from vllm_lite.config.model import ModelConfig as ModelConfig
from vllm_lite.config.vllm import CacheConfig as CacheConfig
from vllm_lite.config.vllm import DeviceConfig as DeviceConfig
from vllm_lite.config.vllm import LoadConfig as LoadConfig
from vllm_lite.config.vllm import ObservabilityConfig as ObservabilityConfig
from vllm_lite.config.vllm import ParallelConfig as ParallelConfig
from vllm_lite.config.vllm import SchedulerConfig as SchedulerConfig
from vllm_lite.config.vllm import VllmConfig as VllmConfig
