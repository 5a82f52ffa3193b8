"""Clients for a program without an event loop: of one engine core in a process of its own, or in this very one.

Process: front end, which may be the engine core as well. Knows: AsyncMPClient, which does all the work of the one; EngineCore,
imported when the other is built. Does not know: sockets or frames.
What each call means is said in EngineCoreClient. One thread uses a client.
Mirrors: vllm/v1/engine/core_client.py (SyncMPClient, InprocClient)
"""

import asyncio
import copy
import logging
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import refuse
from vllm_lite.exceptions import EngineDeadError
from vllm_lite.frontend.core_client.async_mp_client import AsyncMPClient
from vllm_lite.frontend.core_client.client import Bag, NoteCall, Posted
from vllm_lite.tracing.recorder import now_ns
from vllm_lite.wire.messages import EngineCoreOutputs, EngineCoreRequest

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SyncMPClient:
    """Starts an engine core: a thread has the loop that reaches it, a queue brings the bags.

    The constructor blocks until it is ready and leaves nothing behind where it fails.
    """

    def __init__(self, vllm_config: VllmConfig) -> None:
        self._client = AsyncMPClient(vllm_config)
        self.ready = self._client.ready
        self.note_calls = self._client.note_calls  # what notes them runs on the loop's thread, while the caller waits
        self._bags: SimpleQueue[Bag | EngineDeadError] = SimpleQueue()  # what came, and at last the error that ends it
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(self._loop,), name="engine-core-client", daemon=True)
        thread.start()
        pump = asyncio.run_coroutine_threadsafe(_pump(self._client, self._bags), self._loop)
        self._close = partial(_close, self._client, self._loop, thread, pump)
        self._finalizer = weakref.finalize(self, self._close)

    @property
    def dead_error(self) -> EngineDeadError | None:
        return self._client.dead_error

    def get_bag(self) -> Bag:
        """Call it only while a request is in the engine."""
        item = self._bags.get()
        if isinstance(item, Bag):
            return item
        self._bags.put(item)  # it stands: there will be no bag any more
        raise copy.copy(item)

    def add_request(self, request: EngineCoreRequest) -> Posted:
        return self._call(self._client.add_request_async, request)

    def abort_requests(
        self, request_ids: Sequence[str], reason: str = "api", trace_headers: Mapping[str, str] | None = None
    ) -> None:
        if self.dead_error is None:
            self._call(self._client.abort_requests_async, request_ids, reason, trace_headers)

    def call_utility(self, method: str, *args: Any) -> Any:
        return self._call(self._client.call_utility_async, method, *args)

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine core and the thread."""
        if self._finalizer.detach():
            self._close(timeout)

    def _call(self, method: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run an async method of the client on the loop and wait for its result."""
        if self.dead_error is not None:  # there may be no loop any more
            raise copy.copy(self.dead_error)
        return asyncio.run_coroutine_threadsafe(method(*args), self._loop).result()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _pump(client: AsyncMPClient, bags: SimpleQueue[Bag | EngineDeadError]) -> None:
    try:
        while True:
            bags.put(await client.get_bag_async())
    except EngineDeadError as error:
        bags.put(error)


def _close(
    client: AsyncMPClient,
    loop: asyncio.AbstractEventLoop,
    thread: threading.Thread,
    pump: Future[None],
    timeout: float | None = None,
) -> None:
    """End the engine core, which ends the pump, then the loop, which closes the sockets before."""
    client.shutdown(timeout)
    pump.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
    if threading.current_thread() is not thread:  # garbage collection may call this anywhere
        thread.join()


class InprocClient:
    """Builds the engine core here, which loads the model into this process. No busy loop: whoever asks for a bag runs the step.
    Nothing crosses a border, so nothing is traced."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        observability = vllm_config.observability_config
        if observability.level > 0:
            raise refuse("trace_level", observability.level, "0 where the engine core runs in this process: no letter is sent")
        if observability.trace_dir is not None:
            raise refuse("trace_dir", observability.trace_dir, "None where the engine core runs in this process")
        from vllm_lite.engine_core.core import EngineCore
        from vllm_lite.engine_core.executor.abstract import Executor

        self.dead_error: EngineDeadError | None = None
        self._core = EngineCore(vllm_config, Executor.get_class(vllm_config))
        self.ready = [self._core.ready()]

    def note_calls(self, note: NoteCall) -> None:
        """No call is sent, so there is none to note."""

    def get_bag(self) -> Bag:
        """Run a step. What makes it fail is the engine core's end. RuntimeError where a pause holds back all that it has."""
        self._check_alive()
        if not self._core.has_work():
            raise RuntimeError("no request can go on while the engine is paused or asleep: call wake_up() first")
        try:
            bags = self._core.step()
            self._core.run_idle_actions()
        except Exception as error:
            if self.dead_error is None:  # else another thread shut it down under this step
                logger.exception("the engine core failed")
            dead = self._end(EngineDeadError(f"the engine core in this process failed: {type(error).__name__}: {error}"))
            raise copy.copy(dead) from error
        t = now_ns()
        return Bag(bags.get(0) or EngineCoreOutputs(), t, t, 0)

    def add_request(self, request: EngineCoreRequest) -> Posted:
        """Let a request wait for its first step."""
        self._check_alive()
        self._core.add_request(self._core.preprocess_add_request(request))
        return Posted(0, 0)

    def abort_requests(
        self, request_ids: Sequence[str], reason: str = "api", trace_headers: Mapping[str, str] | None = None
    ) -> None:
        if self.dead_error is None:
            self._core.abort_requests(request_ids, reason)

    def call_utility(self, method: str, *args: Any) -> Any:
        """One whose answer waits for further steps fails: nobody would run them."""
        self._check_alive()
        try:
            result = getattr(self._core, method)(*args)
            return result.result(timeout=0) if isinstance(result, Future) else result
        except Exception as error:
            raise RuntimeError(f"Call to {method} method failed: {type(error).__name__}: {error}") from error

    def shutdown(self, timeout: float | None = None) -> None:
        """Free the workers."""
        self._end(EngineDeadError("the engine was shut down"))

    def _end(self, error: EngineDeadError) -> EngineDeadError:
        """Returns the error that stands, which is the first."""
        if self.dead_error is None:
            self.dead_error = error
            self._core.shutdown()
        return self.dead_error

    def _check_alive(self) -> None:
        if self.dead_error is not None:
            raise copy.copy(self.dead_error)
