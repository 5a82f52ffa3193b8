"""Engine core clients: how the front end reaches the engine cores.

Process: front end. Knows: which client a configuration asks for. Does not know: the engine core's inside.
Mirrors: vllm/v1/engine/core_client.py
"""

from __future__ import annotations

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import refuse
from vllm_lite.frontend.core_client.async_mp_client import AsyncMPClient, BackgroundResources
from vllm_lite.frontend.core_client.client import Bag, EngineCoreClient, Posted

__all__ = ["AsyncMPClient", "BackgroundResources", "Bag", "EngineCoreClient", "Posted", "make_async_mp_client"]


def make_async_mp_client(vllm_config: VllmConfig) -> EngineCoreClient:
    """The client that `vllm_config` asks for, its engine cores started and ready."""
    size = vllm_config.parallel_config.data_parallel_size
    if size > 1:
        raise refuse("data_parallel_size", size, "1: this release runs one engine core")
    return AsyncMPClient(vllm_config)
