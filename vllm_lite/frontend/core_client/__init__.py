"""Engine core clients: how the front end reaches the engine cores.

Process: front end. Knows: which client a configuration asks for. Does not know: the engine core's inside.
Mirrors: vllm/v1/engine/core_client.py
"""

from collections.abc import Mapping, Sequence

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import check_int, refuse
from vllm_lite.frontend.core_client.async_mp_client import AsyncMPClient, BackgroundResources
from vllm_lite.frontend.core_client.client import Bag, EngineCoreClient, Posted
from vllm_lite.frontend.core_client.dp_clients import DPAsyncMPClient, DPLBAsyncMPClient
from vllm_lite.frontend.core_client.launcher import launch_core_engines
from vllm_lite.frontend.core_client.sync_clients import InprocClient, SyncMPClient
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
    "launch_core_engines",
    "make_async_mp_client",
    "make_client",
    "note_place",
    "take_ready",
]

SyncEngineCoreClient = SyncMPClient | InprocClient


def make_async_mp_client(vllm_config: VllmConfig, client_addresses: Mapping[str, str] | None = None) -> EngineCoreClient:
    """The client that `vllm_config` asks for, its engine cores ready: started here, or those at `client_addresses`."""
    parallel = vllm_config.parallel_config
    if parallel.data_parallel_size == 1:
        return AsyncMPClient(vllm_config, client_addresses)
    kind = DPAsyncMPClient if parallel.data_parallel_external_lb else DPLBAsyncMPClient
    return kind(vllm_config, client_addresses)


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


def note_place(
    vllm_config: VllmConfig, executor_class: object, client_addresses: object, client_count: int, client_index: int
) -> None:
    """Write into the configuration which of how many front ends this one is, whose run it joins, and a class of executor."""
    if not isinstance(vllm_config, VllmConfig):
        raise refuse("vllm_config", vllm_config, "a VllmConfig, as AsyncEngineArgs.create_engine_config() makes one")
    parallel = vllm_config.parallel_config
    check_int("client_count", client_count, 1)
    check_int("client_index", client_index, 0, client_count - 1)
    parallel.api_process_count, parallel.api_process_rank = client_count, client_index
    if client_addresses is not None:
        given = client_addresses if isinstance(client_addresses, Mapping) else {}
        mine = {"client_count": client_count, "client_index": client_index, "engine_cores": [*parallel.engine_indexes]}
        names = ["input_address", "output_address", "trace_dir", "stats_update_address", *mine]
        missing = [name for name in names if not isinstance(given.get(name), str)]
        if missing:
            raise refuse("client_addresses", client_addresses, f"from launch_core_engines(), with {' and '.join(missing)}")
        for name, value in mine.items():
            if given[name] != str(value):
                raise refuse(
                    name, value, f"{given[name]}: a front end joins with launch_core_engines()'s place and configuration"
                )
        vllm_config.observability_config.trace_dir = given["trace_dir"]
    elif client_count > 1:
        raise refuse("client_addresses", None, f"from launch_core_engines() for {client_count} front ends")
    if executor_class is not None:
        kind = executor_class if isinstance(executor_class, type) else type(None)
        if client_addresses is not None or kind.__module__ in ("__main__", "builtins") or "<locals>" in kind.__qualname__:
            accepted = "None, or an Executor at the top of a module that an engine core which starts here can import"
            raise refuse("executor_class", executor_class, accepted)
        parallel.distributed_executor_backend = f"{kind.__module__}:{kind.__qualname__}"
