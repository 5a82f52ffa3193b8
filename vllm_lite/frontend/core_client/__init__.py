"""Engine core clients: how the front end reaches the engine cores.

Process: front end. Knows: which client a configuration asks for. Does not know: the engine core's inside.
Mirrors: vllm/v1/engine/core_client.py
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import refuse
from vllm_lite.frontend.core_client.async_mp_client import AsyncMPClient, BackgroundResources
from vllm_lite.frontend.core_client.client import Bag, EngineCoreClient, Posted, SyncEngineCoreClient
from vllm_lite.frontend.core_client.dp_clients import DPAsyncMPClient, DPLBAsyncMPClient
from vllm_lite.frontend.core_client.inproc_client import InprocClient
from vllm_lite.frontend.core_client.sync_mp_client import SyncMPClient
from vllm_lite.wire.messages import EngineCoreReadyResponse

__all__ = [
    "AsyncMPClient",
    "BackgroundResources",
    "Bag",
    "DPAsyncMPClient",
    "DPLBAsyncMPClient",
    "EngineCoreClient",
    "InprocClient",
    "Posted",
    "SyncEngineCoreClient",
    "SyncMPClient",
    "make_async_mp_client",
    "make_client",
    "take_ready",
]


def make_async_mp_client(vllm_config: VllmConfig) -> EngineCoreClient:
    """The client that `vllm_config` asks for, its engine cores started and ready."""
    parallel = vllm_config.parallel_config
    if parallel.data_parallel_size == 1:
        return AsyncMPClient(vllm_config)
    return DPAsyncMPClient(vllm_config) if parallel.data_parallel_external_lb else DPLBAsyncMPClient(vllm_config)


def make_client(vllm_config: VllmConfig, *, multiprocess_mode: bool) -> SyncEngineCoreClient:
    """The same for a program without an event loop: an engine core in a process of its own, or in this one."""
    size = vllm_config.parallel_config.data_parallel_size
    if size > 1:
        raise refuse("data_parallel_size", size, "1 for an engine without an event loop; AsyncLLM takes more")
    return SyncMPClient(vllm_config) if multiprocess_mode else InprocClient(vllm_config)


def take_ready(vllm_config: VllmConfig, ready: Sequence[EngineCoreReadyResponse]) -> None:
    """Complete the configuration by what the engine cores found when they were built."""
    vllm_config.model_config.max_model_len = min(response.max_model_len for response in ready)
    vllm_config.cache_config.num_gpu_blocks = sum(response.num_gpu_blocks for response in ready)
