"""The client of engine cores in processes of their own: starts or joins them, sends to them, hears from them.

Process: front end. Knows: sockets, frames. Does not know: how engine cores are started, or what is in a
request's answer.
Sends never block (no high-water mark), so they are plain calls inside the async methods.
Mirrors: vllm/v1/engine/core_client.py (MPClient, AsyncMPClient, BackgroundResources)
"""

import asyncio
import contextlib
import itertools
import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zmq

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import refuse
from vllm_lite.exceptions import EngineDeadError, EngineStartError
from vllm_lite.frontend.core_client.client import Bag, EngineCoreClient, NoteCall, Posted
from vllm_lite.frontend.core_client.inbox import Inbox
from vllm_lite.frontend.core_client.launcher import CoreEngines, decode_word
from vllm_lite.wire.messages import (
    EngineCoreAbort,
    EngineCoreReadyResponse,
    EngineCoreRequest,
    EngineCoreRequestType,
)
from vllm_lite.wire.serial_utils import MsgpackEncoder
from vllm_lite.wire.sockets import make_zmq_socket

JOIN_SECONDS = 30  # for READY of engine cores that are ready


class BackgroundResources:
    """Whatever must be given back when the client goes: processes, sockets. Never holds the client.

    `client_addresses` as from `launch_core_engines`: somebody else's engine cores are joined. None: they are started here. The
    constructor blocks until they are ready and leaves nothing behind where it fails.
    """

    def __init__(self, vllm_config: VllmConfig, client_addresses: Mapping[str, str] | None) -> None:
        self._owner = os.getpid()
        self._context: zmq.Context[Any] = zmq.Context()
        self.engines: CoreEngines | None = None
        self.inbox = Inbox()
        if client_addresses is None:
            self.engines = CoreEngines(vllm_config)
            self.inbox.on_last_word = self.engines.processes.condemn
            client_addresses = self.engines.addresses[0]
        try:
            self.inputs = self._socket(client_addresses["input_address"], zmq.ROUTER)
            self.inbox.listen(self._socket(client_addresses["output_address"], zmq.PULL))
            if vllm_config.parallel_config.api_process_count > 1:
                loads = self._socket(client_addresses["stats_update_address"], zmq.SUB)
                loads.subscribe(b"")
                self.inbox.listen(loads)
            self.ready = self._start(vllm_config.parallel_config.engine_indexes)
        except BaseException:
            self.close(timeout=0)
            raise

    def _start(self, indexes: Sequence[int]) -> list[EngineCoreReadyResponse]:
        """Start the engine cores, where they are ours, and wait for each one's READY."""
        if self.engines is not None:
            self.engines.start()
            self.engines.processes.watch(lambda index, how: self.inbox.fail_threadsafe(EngineDeadError(how, index)))
        ready: dict[int, EngineCoreReadyResponse] = {}
        while len(ready) < len(indexes):
            if not self.inputs.poll(JOIN_SECONDS * 1000):
                missing = sorted(set(indexes) - ready.keys())
                raise EngineStartError(f"no word of engine core {missing} within {JOIN_SECONDS} s: client_addresses are old")
            response = decode_word("READY", EngineCoreReadyResponse, self.inputs.recv_multipart()[1:])
            ready[response.engine_index] = response
        if self.engines is None:
            self.inbox.watch(ready.values())
        return [ready[index] for index in indexes]

    def close(self, timeout: float | None = None) -> None:
        """End the engine cores, then close the sockets on the loop that uses them. May be called more than once."""
        if os.getpid() != self._owner:  # a fork of the process that owns them
            return
        self.inbox.fail_threadsafe(EngineDeadError("the engine was shut down"))
        if self.engines is not None:
            self.engines.close(timeout)
        loop = self.inbox.loop
        if loop is None or not loop.is_running() or asyncio._get_running_loop() is loop:
            self._close_sockets()
        else:
            loop.call_soon_threadsafe(self._close_sockets)

    def _close_sockets(self) -> None:
        self.inbox.fail(EngineDeadError("the engine was shut down"))
        self.inbox.close()
        self._context.destroy(linger=0)  # with the other socket

    def _socket(self, address: str, kind: int) -> zmq.Socket[Any]:
        """Bound, for the engine cores to connect to; connected where it is to the coordinator."""
        try:
            if kind != zmq.SUB and Path(address.removeprefix("ipc://")).exists():  # binding would take it from its owner
                raise FileExistsError("it is used already")
            return make_zmq_socket(self._context, address, kind, bind=kind != zmq.SUB)
        except (OSError, zmq.ZMQError) as error:
            raise refuse("client_addresses", address, f"free, in a folder that is there ({error})") from error


class AsyncMPClient(EngineCoreClient):
    """One engine core, or several for subclasses, started here or joined; one event loop uses a client.

    The constructor blocks until they are ready, as BackgroundResources' does.
    """

    def __init__(self, vllm_config: VllmConfig, client_addresses: Mapping[str, str] | None = None) -> None:
        self.engine_indexes = vllm_config.parallel_config.engine_indexes
        self.resources = BackgroundResources(vllm_config, client_addresses)
        self._finalizer = weakref.finalize(self, self.resources.close)
        self.ready = self.resources.ready
        self._encoder = MsgpackEncoder()
        self._numbers = itertools.count(1)
        self._client_index = vllm_config.parallel_config.api_process_rank
        self._note_call: NoteCall = lambda *_: contextlib.nullcontext()

    def note_calls(self, note: NoteCall) -> None:
        self._note_call = note

    @property
    def dead_error(self) -> EngineDeadError | None:
        return self.resources.inbox.error

    async def get_bag_async(self) -> Bag:
        return await self.resources.inbox.get()

    async def add_request_async(self, request: EngineCoreRequest) -> Posted:
        return self._post(request, self.engine_indexes[0])

    async def abort_requests_async(
        self, request_ids: Sequence[str], reason: str = "api", trace_headers: Mapping[str, str] | None = None
    ) -> None:
        known = trace_headers or {}
        for index, ids in self._by_engine(request_ids).items():
            if ids and self.dead_error is None:
                headers = {request_id: known[request_id] for request_id in ids if request_id in known}
                self._send(EngineCoreRequestType.ABORT, EngineCoreAbort(ids, reason, headers), index)

    async def call_utility_all_async(self, method: str, *args: Any) -> list[Any]:
        return list(await asyncio.gather(*(self._call(index, method, args) for index in self.engine_indexes)))

    async def ping_async(self, seconds: float) -> None:
        await asyncio.gather(*(self._ping(index, seconds) for index in self.engine_indexes))

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine cores, or leave those of others."""
        if self._finalizer.detach():
            self.resources.close(timeout)

    def _post(self, request: EngineCoreRequest, engine_index: int) -> Posted:
        request.client_index = self._client_index
        return Posted(engine_index, self._send(EngineCoreRequestType.ADD, request, engine_index))

    def _by_engine(self, request_ids: Sequence[str]) -> dict[int, list[str]]:
        """Whose requests these are."""
        return {self.engine_indexes[0]: list(request_ids)}

    async def _call(self, engine_index: int, method: str, args: Sequence[Any]) -> Any:
        number = next(self._numbers)
        with self._note_call(method, engine_index, number) as traceparent:
            return await self._ask(EngineCoreRequestType.UTILITY, engine_index, number, method, args, traceparent)

    async def _ping(self, engine_index: int, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._ask(EngineCoreRequestType.PING, engine_index, next(self._numbers)), seconds)
        except TimeoutError:
            raise EngineDeadError(
                f"engine core {engine_index} has not answered for {seconds:g} s: it is stopped or stuck"
            ) from None

    async def _ask(self, request_type: EngineCoreRequestType, engine_index: int, number: int, *body: Any) -> Any:
        answer = self.resources.inbox.expect(number)
        try:
            self._send(request_type, [self._client_index, number, *body], engine_index)
            return await answer
        finally:
            answer.cancel()

    def _send(self, request_type: EngineCoreRequestType, body: object, engine_index: int) -> int:
        """Send one message; returns its bytes. The first send on a loop also starts reading there."""
        self.resources.inbox.check_alive()
        self.resources.inbox.start()
        frames = self._encoder.encode(body)
        self.resources.inputs.send_multipart([engine_index.to_bytes(2, "little"), request_type.value, *frames])
        return sum(map(len, frames))
