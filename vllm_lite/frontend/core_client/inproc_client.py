"""The client of an engine core in this very process: no sockets, no busy loop; whoever asks for a bag runs the step.

Process: front end, which here is the engine core as well. Knows: EngineCore, imported when one is built. Does not know:
threads.
Mirrors: vllm/v1/engine/core_client.py (InprocClient)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import refuse
from vllm_lite.exceptions import EngineDeadError
from vllm_lite.frontend.core_client.client import Bag, NoteCall, Posted
from vllm_lite.tracing.recorder import now_ns
from vllm_lite.wire.messages import EngineCoreOutputs, EngineCoreRequest

logger = logging.getLogger(__name__)


class InprocClient:
    """Builds the engine core here, which loads the model into this process; the calls of SyncMPClient. Nothing crosses a
    border, so nothing is traced."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        observability = vllm_config.observability_config
        if observability.level > 0:
            raise refuse("trace_level", observability.level, "0 where the engine core runs in this process: no letter is sent")
        from vllm_lite.engine_core.core import EngineCore
        from vllm_lite.engine_core.executor.abstract import Executor

        self._error: EngineDeadError | None = None
        self._core = EngineCore(vllm_config, Executor.get_class(vllm_config))
        self.ready = [self._core.ready()]

    @property
    def dead_error(self) -> EngineDeadError | None:
        """Why the engine core is of no use any more."""
        return self._error

    def get_bag(self) -> Bag:
        """Run a step. What makes it fail is the engine core's end."""
        self._check_alive()
        try:
            bags = self._core.step()
            self._core.run_idle_actions()
        except Exception as error:
            logger.exception("the engine core failed")
            self._end(EngineDeadError(f"the engine core in this process failed: {type(error).__name__}: {error}"))
            self._check_alive()
            raise
        t = now_ns()
        return Bag(bags.get(0) or EngineCoreOutputs(), t, t, 0)

    def get_output(self) -> EngineCoreOutputs:
        """The next bag's outputs alone."""
        return self.get_bag().outputs

    def note_calls(self, note: NoteCall) -> None:
        """No call is sent, so there is none to note."""

    def add_request(self, request: EngineCoreRequest) -> Posted:
        """Let a request wait for its first step."""
        self._check_alive()
        self._core.add_request(self._core.preprocess_add_request(request))
        return Posted(0, 0)

    def abort_requests(
        self, request_ids: Sequence[str], reason: str = "api", trace_headers: Mapping[str, str] | None = None
    ) -> None:
        """Give requests up; nothing where the engine core is dead."""
        if self._error is None:
            self._core.abort_requests(request_ids, reason)

    def call_utility(self, method: str, *args: Any) -> Any:
        """Call a method of the engine core. One whose answer waits for further steps fails: nobody would run them."""
        self._check_alive()
        try:
            result = getattr(self._core, method)(*args)
            return result.result(timeout=0) if isinstance(result, Future) else result
        except Exception as error:
            raise RuntimeError(f"Call to {method} method failed: {type(error).__name__}: {error}") from error

    def shutdown(self, timeout: float | None = None) -> None:
        """Free the workers."""
        self._end(EngineDeadError("the engine was shut down"))

    def _end(self, error: EngineDeadError) -> None:
        if self._error is None:
            self._error = error
            self._core.shutdown()

    def _check_alive(self) -> None:
        if self._error is not None:
            raise EngineDeadError(str(self._error))
