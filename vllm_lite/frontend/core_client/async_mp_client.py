"""The client of one engine core in a process of its own: starts it, sends to it, hears from it.

Process: front end. Knows: sockets, frames, the engine core's process. Does not know: what is in a request's answer.
Sends never block (no high-water mark), so they are plain calls inside the async methods.
Mirrors: vllm/v1/engine/core_client.py (MPClient, AsyncMPClient, BackgroundResources)
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import shutil
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import zmq

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import refuse
from vllm_lite.exceptions import EngineDeadError
from vllm_lite.frontend.core_client.client import Bag, EngineCoreClient, NoteCall, Posted
from vllm_lite.frontend.core_client.inbox import Inbox
from vllm_lite.frontend.core_client.launcher import Handshake, hearing_ctrl_c, identity_of
from vllm_lite.frontend.core_client.processes import EngineProcesses
from vllm_lite.wire.messages import (
    EngineCoreAbort,
    EngineCoreReadyResponse,
    EngineCoreRequest,
    EngineCoreRequestType,
    EngineInit,
)
from vllm_lite.wire.serial_utils import MsgpackEncoder
from vllm_lite.wire.sockets import ipc_folder, make_zmq_socket

READY_TIMEOUT = "VLLM_LITE_ENGINE_READY_TIMEOUT_S"


class BackgroundResources:
    """Whatever must be given back when the client goes: processes, sockets, their folder. Never holds the client."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._context: zmq.Context[Any] = zmq.Context()
        self._folder = ipc_folder()
        self.processes = EngineProcesses()
        self.inputs = self._bind(zmq.ROUTER, "inputs")
        self.inbox = Inbox(self._bind(zmq.PULL, "outputs"), self.processes.condemn)

    def start(self, vllm_config: VllmConfig, indexes: Sequence[int]) -> list[EngineCoreReadyResponse]:
        """Start engine cores of these indexes and wait for their READY."""
        timeout = os.environ.get(READY_TIMEOUT, "600")
        if not re.fullmatch(r"\d+(\.\d+)?", timeout):
            raise refuse(READY_TIMEOUT, timeout, "a number of seconds")
        handshake = self._bind(zmq.ROUTER, "handshake")
        try:
            init = EngineInit([self._address("inputs")], [self._address("outputs")], msgspec.msgpack.encode(vllm_config))
            with hearing_ctrl_c():
                self.processes.start(self._address("handshake"), indexes)
                return Handshake(handshake, self.inputs, self.processes, init).wait(float(timeout))
        finally:
            handshake.close(linger=1000)

    def watch(self) -> None:
        """Tell the inbox when an engine core exits."""
        inbox = self.inbox
        self.processes.watch(lambda index, how: inbox.fail_threadsafe(EngineDeadError(f"engine core {index} {how}"), index))

    def close(self, timeout: float | None = None) -> None:
        """End the engine cores, then close the sockets on the loop that uses them. May be called more than once."""
        if os.getpid() != self._owner:  # a fork of the process that owns them
            return
        self.inbox.fail_threadsafe(EngineDeadError("the engine was shut down"))
        self.processes.close(timeout)
        loop = self.inbox.loop
        if loop is None or loop.is_closed() or not loop.is_running() or _running_loop() is loop:
            self._close_sockets()
        else:
            loop.call_soon_threadsafe(self._close_sockets)

    def _close_sockets(self) -> None:
        self.inbox.fail(EngineDeadError("the engine was shut down"))
        self.inbox.close()
        self.inputs.close(linger=0)
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _bind(self, kind: int, name: str) -> zmq.Socket[Any]:
        return make_zmq_socket(self._context, self._address(name), kind, bind=True)

    def _address(self, name: str) -> str:
        return f"ipc://{self._folder / name}"


class AsyncMPClient(EngineCoreClient):
    """One engine core, started here. The constructor blocks until it is ready and leaves nothing behind where it fails.

    One event loop uses a client. `engine_indexes` are those of the engine cores to start; subclasses have others or several.
    """

    def __init__(self, vllm_config: VllmConfig, engine_indexes: Sequence[int] = (0,)) -> None:
        self.engine_indexes = list(engine_indexes)
        self.resources = BackgroundResources()
        self._finalizer = weakref.finalize(self, BackgroundResources.close, self.resources)
        self._encoder = MsgpackEncoder()
        self._numbers = itertools.count(1)
        self._client_index = 0
        self._note_call: NoteCall = lambda *_: contextlib.nullcontext()
        try:
            self.ready = self.resources.start(vllm_config, self.engine_indexes)
            self.resources.watch()
        except BaseException:
            self.shutdown(timeout=0)
            raise

    def note_calls(self, note: NoteCall) -> None:
        """From now on wrap every utility call in `note`."""
        self._note_call = note

    @property
    def dead_error(self) -> EngineDeadError | None:
        """Why the engine core cannot be reached any more."""
        return self.resources.inbox.error

    @property
    def dead_engine_index(self) -> int | None:
        """The engine core that died."""
        return self.resources.inbox.dead_engine_index

    async def get_bag_async(self) -> Bag:
        """Wait for the next bag."""
        self.resources.inbox.start()
        return await self.resources.inbox.get()

    async def add_request_async(self, request: EngineCoreRequest) -> Posted:
        """Send a request."""
        return self._post(request, self.engine_indexes[0])

    async def abort_requests_async(
        self, request_ids: Sequence[str], reason: str = "api", trace_headers: Mapping[str, str] | None = None
    ) -> None:
        """Tell the engine core to give requests up; nothing where it is dead."""
        self._abort(request_ids, reason, trace_headers, self.engine_indexes[0])

    async def call_utility_async(self, method: str, *args: Any) -> Any:
        """Call a method of the engine core."""
        return await self._call(self.engine_indexes[0], method, args)

    async def ping_async(self, seconds: float) -> None:
        """Ask for a sign of life."""
        await self._ping(self.engine_indexes[0], seconds)

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine cores."""
        if self._finalizer.detach():
            self.resources.close(timeout)

    def _post(self, request: EngineCoreRequest, engine_index: int) -> Posted:
        request.client_index = self._client_index
        return Posted(engine_index, self._send(EngineCoreRequestType.ADD, request, engine_index))

    def _abort(
        self, request_ids: Sequence[str], reason: str, trace_headers: Mapping[str, str] | None, engine_index: int
    ) -> None:
        if request_ids and self.dead_error is None:
            abort = EngineCoreAbort(list(request_ids), reason, dict(trace_headers or {}))
            self._send(EngineCoreRequestType.ABORT, abort, engine_index)

    async def _call(self, engine_index: int, method: str, args: Sequence[Any]) -> Any:
        self.resources.inbox.start()
        call_id = next(self._numbers)
        answer = self.resources.inbox.expect(call_id)
        with self._note_call(method, engine_index, call_id) as traceparent:
            try:
                body = [self._client_index, call_id, method, args, traceparent]
                self._send(EngineCoreRequestType.UTILITY, body, engine_index)
                return await answer
            finally:
                answer.cancel()

    async def _ping(self, engine_index: int, seconds: float) -> None:
        self.resources.inbox.start()
        number = next(self._numbers)
        pong = self.resources.inbox.expect_pong(number)
        try:
            self._send(EngineCoreRequestType.PING, [self._client_index, number], engine_index)
            await asyncio.wait_for(pong, seconds)
        except TimeoutError:
            raise EngineDeadError(
                f"engine core {engine_index} has not answered for {seconds:g} s: it is stopped or stuck"
            ) from None
        finally:
            pong.cancel()

    def _send(self, request_type: EngineCoreRequestType, body: object, engine_index: int) -> int:
        """Send one message; returns its bytes. The first send on a loop also starts reading there."""
        self.resources.inbox.check_alive()
        self.resources.inbox.start()
        frames = self._encoder.encode(body)
        self.resources.inputs.send_multipart([identity_of(engine_index), request_type.value, *frames])
        return sum(map(len, frames))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
