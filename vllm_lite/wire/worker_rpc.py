"""Calls from the engine core to a worker process, and the answers.

Process: engine core and worker. Knows: the few types that cross this border typed; everything else is plain values and arrays.
Does not know: queues, or what a method does.
Mirrors: vllm/v1/executor/multiproc_executor.py (its RPC tuples)
"""

from __future__ import annotations

from typing import Any

import msgspec

from vllm_lite.wire.kv_cache_interface import FullAttentionSpec, KVCacheConfig
from vllm_lite.wire.step import ModelRunnerOutput, SchedulerOutput


class WorkerCall(msgspec.Struct, array_like=True, omit_defaults=True):
    """`method` is called with `args` and `kwargs`, or with the one typed argument that is set.

    Only worker `output_rank` answers; None: all do. `call_id` grows by one with each call.
    """

    call_id: int
    method: str
    output_rank: int | None = None
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    scheduler_output: SchedulerOutput | None = None
    kv_cache_config: KVCacheConfig | None = None


class WorkerReply(msgspec.Struct, array_like=True, omit_defaults=True):
    """The answer to `call_id` (0: the worker stands, or says why not). A set `error_type` means that the call raised."""

    call_id: int
    error_type: str | None = None
    error: str = ""
    result: Any = None
    model_output: ModelRunnerOutput | None = None
    kv_cache_specs: dict[str, FullAttentionSpec] | None = None

    @property
    def value(self) -> Any:
        """What the call returned, whichever field it came in."""
        if self.model_output is not None:
            return self.model_output
        return self.result if self.kv_cache_specs is None else self.kv_cache_specs
