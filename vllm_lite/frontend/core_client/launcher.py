"""Starting engine cores: HELLO, configuration, READY, and a quick clear error where one of them cannot.

Process: front end, while the engine is being built; blocks. Knows: the handshake's messages. Does not know: requests.
Mirrors: vllm/v1/engine/utils.py (launch_core_engines, wait_for_engine_startup)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import msgspec
import zmq

from vllm_lite import exceptions
from vllm_lite.exceptions import EngineStartError
from vllm_lite.frontend.core_client.processes import EngineProcesses
from vllm_lite.wire.messages import (
    PROTOCOL_VERSION,
    EngineCoreReadyResponse,
    EngineHello,
    EngineInit,
    EngineStartFailed,
)
from vllm_lite.wire.serial_utils import MsgpackDecoder, MsgpackEncoder

logger = logging.getLogger(__name__)

LAST_WORDS_MS = 500  # how long an exited engine core's message may still be on its way
Socket = zmq.Socket[Any]


def identity_of(engine_index: int) -> bytes:
    """The name of an engine core's DEALER sockets."""
    return engine_index.to_bytes(2, "little")


class Handshake:
    """Waits until every engine core is ready. `handshake` and `inputs` are ROUTER sockets, bound before the cores started."""

    def __init__(self, handshake: Socket, inputs: Socket, processes: EngineProcesses, init: EngineInit) -> None:
        self._handshake = handshake
        self._inputs = inputs
        self._processes = processes
        self._init = MsgpackEncoder().encode(init)
        self._hello: MsgpackDecoder[EngineHello] = MsgpackDecoder(EngineHello)
        self._failed: MsgpackDecoder[EngineStartFailed] = MsgpackDecoder(EngineStartFailed)
        self._response: MsgpackDecoder[EngineCoreReadyResponse] = MsgpackDecoder(EngineCoreReadyResponse)
        self._ready: dict[int, EngineCoreReadyResponse] = {}

    def wait(self, timeout: float) -> list[EngineCoreReadyResponse]:
        """READY of each engine core, in the order of their index.

        Raises what an engine core says stands in its way, else EngineStartError: one exited, speaks another protocol, or
        was not ready within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        poller = zmq.Poller()
        for source in (self._handshake, self._inputs, *self._processes.pidfds):
            poller.register(source, zmq.POLLIN)
        indexes = self._processes.indexes
        while len(self._ready) < len(indexes):
            left = deadline - time.monotonic()
            events = dict(poller.poll(int(left * 1000) + 1)) if left > 0 else {}
            if not events:
                missing = sorted(set(indexes) - self._ready.keys())
                raise EngineStartError(f"engine core {missing} was not ready within {timeout:g} s and was ended")
            if self._inputs in events:
                self._take_ready()
            if self._handshake in events:
                self._take_handshake()
            exited = self._processes.exited()
            if exited:
                self._explain(exited)
        return [self._ready[index] for index in indexes]

    def _take_handshake(self) -> None:
        """HELLO gets the configuration for an answer; a failure to start is raised here."""
        identity, *frames = self._handshake.recv_multipart()
        try:
            hello = self._hello.decode(frames)
        except msgspec.DecodeError:
            raise self._start_error(frames) from None
        if hello.protocol_version != PROTOCOL_VERSION:
            raise _other_protocol(hello.engine_index, hello.protocol_version)
        self._handshake.send_multipart([identity, *self._init])

    def _start_error(self, frames: list[bytes]) -> Exception:
        """What an engine core says instead of HELLO, as the exception that it names where that is one of ours."""
        try:
            failed = self._failed.decode(frames)
        except msgspec.DecodeError:
            return EngineStartError("an engine core began with a message that is neither HELLO nor a failure to start")
        kind = getattr(exceptions, failed.error_type, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            error: Exception = kind(failed.message)
            return error
        return EngineStartError(f"{failed.error_type}: {failed.message}")

    def _take_ready(self) -> None:
        _, *frames = self._inputs.recv_multipart()
        try:
            response = self._response.decode(frames)
        except msgspec.DecodeError as error:
            raise EngineStartError(f"an engine core's READY message is not one: {error}") from error
        if response.protocol_version != PROTOCOL_VERSION:
            raise _other_protocol(response.engine_index, response.protocol_version)
        self._ready[response.engine_index] = response

    def _explain(self, exited: dict[int, str]) -> None:
        """An engine core is gone: raise its own words where they are still to be read, else what is known of its end."""
        while self._handshake.poll(LAST_WORDS_MS):
            self._take_handshake()
        ends = "; ".join(f"engine core {index} {how}" for index, how in exited.items())
        raise EngineStartError(f"the engine could not be started: {ends}. Its last words above say why")


@contextlib.contextmanager
def hearing_ctrl_c() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt although a loop is kept waiting.

    A running loop's Ctrl-C cancels a task or calls somebody back, which is not before we are done: raise here as well.
    """
    handler = signal.getsignal(signal.SIGINT)
    in_loop = asyncio._get_running_loop() is not None and threading.current_thread() is threading.main_thread()
    if not in_loop or not callable(handler):  # without a loop the handler is heard; SIG_IGN is meant
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        handler(number, frame)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _other_protocol(engine_index: int, version: int) -> EngineStartError:
    return EngineStartError(
        f"engine core {engine_index} speaks version {version} of the protocol and this front end version {PROTOCOL_VERSION}; "
        "install the same release of vllm-lite on both sides"
    )
