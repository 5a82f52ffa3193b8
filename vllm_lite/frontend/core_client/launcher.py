"""Starting engine cores: HELLO, configuration, READY, and a quick clear error where one of them cannot.

Process: front end while its engine is being built, or the launcher of several front ends; blocks. Knows: the handshake's
messages, the addresses of all sockets. Does not know: requests.
Mirrors: vllm/v1/engine/utils.py (launch_core_engines, wait_for_engine_startup)
"""

import asyncio
import contextlib
import copy
import logging
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, TypeVar

import msgspec
import zmq

from vllm_lite import exceptions
from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import check_int, refuse
from vllm_lite.exceptions import EngineStartError
from vllm_lite.frontend.core_client.processes import EngineProcesses
from vllm_lite.frontend.trace_run import TraceRun
from vllm_lite.wire.messages import (
    PROTOCOL_VERSION,
    EngineCoreReadyResponse,
    EngineHello,
    EngineInit,
    EngineStartFailed,
)
from vllm_lite.wire.serial_utils import MsgpackDecoder
from vllm_lite.wire.sockets import ipc_folder, make_zmq_socket

logger = logging.getLogger(__name__)

READY_TIMEOUT = "VLLM_LITE_ENGINE_READY_TIMEOUT_S"
LOGGING_LEVEL = "VLLM_LITE_LOGGING_LEVEL"
HEAR_EVERY_MS = 100
LAST_WORDS_MS = 500  # how long an exited engine core's message may still be on its way

Word = TypeVar("Word", EngineHello, EngineCoreReadyResponse)


@contextlib.contextmanager
def launch_core_engines(vllm_config: VllmConfig, client_count: int) -> Iterator[list[dict[str, Any]]]:
    """Start the engine cores that `client_count` front ends share, and end them with the block.

    Yields the keyword arguments with which each front end joins: `AsyncLLM.from_vllm_config(vllm_config, **arguments)`, in a
    process of its own. They are plain values, and good for one front end each. The coordinator's death, or an engine core's, is
    the death of all. Raises as AsyncLLM does where the engine cannot be started.
    """
    check_int("client_count", client_count, 1)
    config = copy.deepcopy(vllm_config)
    with contextlib.ExitStack() as stack:
        run = TraceRun(config.observability_config)
        stack.callback(run.close)
        config.observability_config.trace_dir = str(run.path)
        engines = CoreEngines(config, client_count)
        stack.callback(engines.close)
        engines.start()
        engines.processes.watch(lambda _, how: logger.error("%s; the others are killed", how), by_force=True)
        yield [
            {"client_addresses": addresses, "client_count": client_count, "client_index": index}
            for index, addresses in enumerate(engines.addresses)
        ]


class CoreEngines:
    """The engine cores that a configuration asks for and, for several front ends, the coordinator: started and ended.

    `addresses` are those of each front end's sockets, which it binds itself, before or after the start.
    """

    def __init__(self, vllm_config: VllmConfig, client_count: int = 1) -> None:
        self._vllm_config = vllm_config
        self._folder = ipc_folder()
        self.processes = EngineProcesses()
        self.addresses = [
            {
                "input_address": self._address(f"inputs-{index}"),
                "output_address": self._address(f"outputs-{index}"),
                "stats_update_address": self._address("stats"),
                "trace_dir": str(vllm_config.observability_config.trace_dir),
                "client_count": str(client_count),
                "client_index": str(index),
                "engine_cores": str([*vllm_config.parallel_config.engine_indexes]),
            }
            for index in range(client_count)
        ]

    def start(self) -> None:
        """Come back when every engine core is ready.

        Raises what an engine core says stands in its way, else EngineStartError: one exited, speaks another protocol, or
        was not ready in time.
        """
        timeout = os.environ.get(READY_TIMEOUT, "600")
        if not re.fullmatch(r"\d+(\.\d+)?", timeout):
            raise refuse(READY_TIMEOUT, timeout, "a number of seconds")
        level = os.environ.get(LOGGING_LEVEL, "WARNING")
        if level not in logging.getLevelNamesMapping():
            raise refuse(LOGGING_LEVEL, level, "one of DEBUG, INFO, WARNING, ERROR and CRITICAL")
        indexes, handshake_address = self._vllm_config.parallel_config.engine_indexes, self._address("handshake")
        inputs, outputs = ([one[kind] for one in self.addresses] for kind in ("input_address", "output_address"))
        init = EngineInit(inputs, outputs, msgspec.msgpack.encode(self._vllm_config))
        coordinator: list[str] = []
        if len(self.addresses) > 1:
            init.coordinator_address = self._address("loads")
            coordinator = ["--engines", init.coordinator_address, "--publish", self._address("stats")]
            coordinator += ["--num-engines", str(indexes.stop)]
        with (
            zmq.Context() as context,
            make_zmq_socket(context, handshake_address, zmq.ROUTER, bind=True, linger=1000) as handshake,
            noting_ctrl_c() as hear,
        ):
            self.processes.start(handshake_address, indexes, coordinator)
            self._await_ready(handshake, init, float(timeout), hear)

    def _await_ready(self, socket: zmq.Socket[Any], init: EngineInit, timeout: float, hear: Callable[[], None]) -> None:
        """`socket` is a ROUTER. HELLO gets the configuration for an answer; READY, or a failure to start, comes next."""
        greeted, missing = set[bytes](), set(self._vllm_config.parallel_config.engine_indexes)
        deadline = time.monotonic() + timeout
        poller = zmq.Poller()
        for source in (socket, *self.processes.pidfds):
            poller.register(source, zmq.POLLIN)
        while missing:
            events = dict(poller.poll(HEAR_EVERY_MS))
            hear()
            if time.monotonic() > deadline:
                raise EngineStartError(f"engine core {sorted(missing)} was not ready within {timeout:g} s and was ended")
            if socket in events:
                identity, *frames = socket.recv_multipart()
                if identity in greeted:
                    _raise_failure(frames)
                    missing.discard(decode_word("READY", EngineCoreReadyResponse, frames).engine_index)
                else:
                    decode_word("HELLO", EngineHello, frames)
                    greeted.add(identity)
                    socket.send_multipart([identity, msgspec.msgpack.encode(init)])
            elif (exited := self.processes.exited()) and not socket.poll(LAST_WORDS_MS):  # who is gone may have said why
                ends = "; ".join(exited.values())
                raise EngineStartError(f"the engine could not be started: {ends}. Its last words above say why")

    def close(self, timeout: float | None = None) -> None:
        """End the processes, in order for `timeout` seconds, then by force. May be called more than once."""
        if self.processes.close(timeout):
            shutil.rmtree(self._folder, ignore_errors=True)

    def _address(self, name: str) -> str:
        return f"ipc://{self._folder / name}"


def _raise_failure(frames: Sequence[bytes]) -> None:
    """A failure to start is raised as the exception that it names, where that is one of ours; anything else passes."""
    try:
        failed = MsgpackDecoder(EngineStartFailed).decode(frames)
    except msgspec.DecodeError:
        return
    kind = getattr(exceptions, failed.error_type, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        raise kind(failed.message)
    raise EngineStartError(f"{failed.error_type}: {failed.message}")


def decode_word(name: str, kind: type[Word], frames: Sequence[bytes]) -> Word:
    """HELLO or READY, as `name` says; EngineStartError where it is none, or one of another release."""
    try:
        word = MsgpackDecoder(kind).decode(frames)
    except msgspec.DecodeError as error:
        raise EngineStartError(f"an engine core sent a message that is not {name}: {error}") from error
    if word.protocol_version != PROTOCOL_VERSION:
        raise EngineStartError(
            f"engine core {word.engine_index} speaks version {word.protocol_version} of the protocol and this front end "
            f"version {PROTOCOL_VERSION}; install the same release of vllm-lite on both sides"
        )
    return word


@contextlib.contextmanager
def noting_ctrl_c() -> Iterator[Callable[[], None]]:
    """Ctrl-C has no effect but where the function that this yields is called, and at the end of the block.

    So none comes between a child's birth and its entry in our list. There it raises KeyboardInterrupt although a loop is kept
    waiting: a running loop's Ctrl-C cancels a task or calls somebody back, which is not before we are done.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):  # not heard here, or not meant
        yield lambda: None
        return
    came: list[tuple[int, FrameType | None]] = []

    def hear() -> None:
        while came:
            handler(*came.pop())
            if asyncio._get_running_loop() is not None:
                raise KeyboardInterrupt

    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield hear
    finally:
        signal.signal(signal.SIGINT, handler)
        hear()
