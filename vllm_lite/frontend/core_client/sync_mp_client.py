"""The client of one engine core for a program without an event loop: a thread has the loop, a queue brings the bags.

Process: front end; any thread may call, the loop runs in one of its own. Knows: AsyncMPClient, which does all the work there.
Does not know: sockets or frames.
Mirrors: vllm/v1/engine/core_client.py (SyncMPClient)
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from vllm_lite.config import VllmConfig
from vllm_lite.exceptions import EngineDeadError
from vllm_lite.frontend.core_client.async_mp_client import AsyncMPClient
from vllm_lite.frontend.core_client.client import Bag, NoteCall, Posted
from vllm_lite.wire.messages import EngineCoreOutputs, EngineCoreRequest

T = TypeVar("T")


class SyncMPClient:
    """One engine core, started here. The constructor blocks until it is ready and leaves nothing behind where it fails.

    One thread uses it. `ready` and the errors of each call are those of EngineCoreClient.
    """

    def __init__(self, vllm_config: VllmConfig) -> None:
        self._client = AsyncMPClient(vllm_config)
        self.ready = self._client.ready
        self._bags: SimpleQueue[Bag | EngineDeadError] = SimpleQueue()  # what came, and at last the error that ends it
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(self._loop,), name="engine-core-client", daemon=True)
        thread.start()
        pump = asyncio.run_coroutine_threadsafe(_pump(self._client, self._bags), self._loop)
        self._close = partial(_close, self._client, self._loop, thread, pump)
        self._finalizer = weakref.finalize(self, self._close)

    def note_calls(self, note: NoteCall) -> None:
        """From now on wrap every utility call in `note`; it runs on the loop's thread, while the caller waits."""
        self._client.note_calls(note)

    @property
    def dead_error(self) -> EngineDeadError | None:
        """Why the engine core cannot be reached any more."""
        return self._client.dead_error

    def get_bag(self) -> Bag:
        """Wait for the next bag. Call it only while a request is in the engine."""
        item = self._bags.get()
        if isinstance(item, Bag):
            return item
        self._bags.put(item)  # it stands: there will be no bag any more
        raise EngineDeadError(str(item))

    def get_output(self) -> EngineCoreOutputs:
        """The next bag's outputs alone."""
        return self.get_bag().outputs

    def add_request(self, request: EngineCoreRequest) -> Posted:
        """Send a request."""
        return self._call(self._client.add_request_async, request)

    def abort_requests(
        self, request_ids: Sequence[str], reason: str = "api", trace_headers: Mapping[str, str] | None = None
    ) -> None:
        """Tell the engine core to give requests up; nothing where it is dead."""
        if self.dead_error is None:
            self._call(self._client.abort_requests_async, request_ids, reason, trace_headers)

    def call_utility(self, method: str, *args: Any) -> Any:
        """Call a method of the engine core and wait for its result."""
        return self._call(self._client.call_utility_async, method, *args)

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine core and the thread."""
        if self._finalizer.detach():
            self._close(timeout)

    def _call(self, method: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run an async method of the client on the loop and wait for its result."""
        error = self.dead_error
        if error is not None:
            raise EngineDeadError(str(error))
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
