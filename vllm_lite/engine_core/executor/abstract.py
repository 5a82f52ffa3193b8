"""How the engine core drives its hands, whichever they are.

Process: engine core. Knows: the calls every executor answers. Does not know: torch, or where the worker lives.
Mirrors: vllm/v1/executor/abstract.py
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from operator import attrgetter
from typing import Any

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import refuse
from vllm_lite.wire.kv_cache_interface import FullAttentionSpec, KVCacheConfig
from vllm_lite.wire.step import ModelRunnerOutput, SchedulerOutput

FailureCallback = Callable[[], None]
_CLASSES = {  # by name, since each imports this module, and only the one that is asked for is wanted
    "uni": "vllm_lite.engine_core.executor.uniproc_executor:UniProcExecutor",
    "mp": "vllm_lite.engine_core.executor.multiproc_executor:MultiprocExecutor",
    "toy": "vllm_lite.engine_core.executor.toy:ToyExecutor",
}


class Executor(ABC):
    """Drives `world_size` workers through one step at a time.

    A step is two calls: `execute_model` (forward pass), then `sample_tokens`. The constructor returns once the weights are
    loaded. Every call raises RuntimeError after a worker died.
    """

    max_concurrent_batches: int = 1  # steps that may be in flight; above 1 where execute_model can return at once
    async_scheduling_by_default: bool = False

    def __init__(self, vllm_config: VllmConfig) -> None:
        self.vllm_config = vllm_config

    @staticmethod
    def get_class(vllm_config: VllmConfig) -> type[Executor]:
        """The class that `parallel_config.distributed_executor_backend` names; VLLMValidationError where there is none."""
        name = vllm_config.parallel_config.distributed_executor_backend
        module, _, path = _CLASSES.get(name, name).partition(":")
        try:
            found = attrgetter(path)(importlib.import_module(module))
        except (ImportError, AttributeError) as error:
            accepted = f"a class that the engine core's process can import ({error}); PYTHONPATH says where from"
            raise refuse("distributed_executor_backend", name, accepted) from error
        if not (isinstance(found, type) and issubclass(found, Executor)):
            raise refuse("distributed_executor_backend", name, "the module:Class of an Executor")
        return found

    @abstractmethod
    def submit(self, method: str, *args: Any) -> Future[Any]:
        """Let every worker run `method`, in the order of these calls; the Future is the first worker's answer."""

    @abstractmethod
    def collective_rpc(
        self, method: str, timeout: float | None = None, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> list[Any]:
        """Call `method` on every worker; one result for each, in rank order. Raises TimeoutError naming method and rank."""

    def execute_model(self, scheduler_output: SchedulerOutput) -> Future[ModelRunnerOutput | None]:
        """Run the forward pass. None: `sample_tokens` has the result; one comes from here only where nothing was scheduled."""
        return self.submit("execute_model", scheduler_output)

    def sample_tokens(self, grammar_output: None = None) -> Future[ModelRunnerOutput]:
        """Sample from the logits of the last `execute_model`."""
        return self.submit("sample_tokens", grammar_output)

    def get_kv_cache_specs(self) -> dict[str, FullAttentionSpec]:
        """Each attention layer's KV cache, by layer name, as the worker's probe found it."""
        specs: dict[str, FullAttentionSpec] = self.collective_rpc("get_kv_cache_specs")[0]
        return specs

    def determine_available_memory(self) -> int:
        """Bytes the KV cache may take: what the worker with the least room has."""
        return min(map(int, self.collective_rpc("determine_available_memory")))

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the KV cache and warm up."""
        self.collective_rpc("initialize_from_config", args=(kv_cache_config,))

    def worker_info(self) -> dict[str, Any]:
        """Facts for READY: `dtype`, `device`, `attention_backend`, `weights_bytes`, `load_seconds`.

        `supported_tasks`, where it is there, lists what requests may ask for besides "generate": "embed".
        """
        info: dict[str, Any] = self.collective_rpc("get_info")[0]
        return info

    def register_failure_callback(self, callback: FailureCallback) -> None:  # noqa: B027  (a default for the processless)
        """Call `callback` when a worker dies; at once where one already has. Executors without processes never do."""

    def check_health(self) -> None:  # noqa: B027  (a default for the processless)
        """Raise RuntimeError where a worker is dead."""

    @abstractmethod
    def shutdown(self) -> None:
        """Free the workers. May be called more than once."""
