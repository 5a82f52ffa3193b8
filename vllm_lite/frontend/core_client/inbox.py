"""What comes from the engine cores: bags for the output handler, answers to calls, and the news that one is dead.

Process: front end, on the event loop. Knows: the output socket, who waits for what. Does not know: requests, or the client
object, which can therefore be collected while the loop still holds this.
Mirrors: vllm/v1/engine/core_client.py (process_outputs_socket)
"""

import asyncio
import contextlib
import contextvars
import copy
import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

import zmq

from vllm_lite.exceptions import EngineDeadError
from vllm_lite.frontend.core_client.client import Bag
from vllm_lite.tracing.recorder import now_ns
from vllm_lite.wire.messages import ENGINE_CORE_DEAD, EngineCoreOutputs, EngineCoreReadyResponse, UtilityOutput
from vllm_lite.wire.serial_utils import MsgpackDecoder

logger = logging.getLogger(__name__)


class Inbox:
    """Reads its sockets whenever the loop says that something has come: the engine cores' bags, the coordinator's news.

    The first error that `fail` is told stands. It is delivered after the bags that came before it, and at once to every call
    that waits for an answer. `on_last_word` is called when an engine core says itself that it dies.
    """

    def __init__(self) -> None:
        self.on_last_word: Callable[[], None] = lambda: None
        self._sockets: dict[int, zmq.Socket[Any]] = {}  # by file descriptor
        self._watched: dict[int, EngineDeadError] = {}  # by pidfd: what its process's exit means
        self._decoder: MsgpackDecoder[EngineCoreOutputs] = MsgpackDecoder(EngineCoreOutputs)
        self._bags: asyncio.Queue[Bag | EngineDeadError] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.loop: asyncio.AbstractEventLoop | None = None  # that reads; None before `start`
        self._failed = False
        self.error: EngineDeadError | None = None

    def listen(self, socket: zmq.Socket[Any]) -> None:
        """Before `start`: read this one too."""
        self._sockets[int(socket.getsockopt(zmq.FD))] = socket

    def start(self) -> None:
        """Read on the running loop from now on. RuntimeError where another loop did so before."""
        loop = asyncio.get_running_loop()
        if self.loop is loop:
            return
        if self.loop is not None:
            raise RuntimeError("this engine client belongs to another event loop; build one engine for each loop")
        self.loop = loop
        # In an empty context: whoever comes first must not lend its context to what is read for all.
        run = contextvars.Context().run
        for descriptor in self._sockets:
            run(loop.add_reader, descriptor, self._read)
        for pidfd, error in self._watched.items():
            run(loop.add_reader, pidfd, self.fail, error)
        self._read()  # a socket's descriptor tells of changes only, and something may have come before

    def watch(self, engine_cores: Iterable[EngineCoreReadyResponse]) -> None:
        """Before `start`: notice the exit of these engine cores, which another process owns."""
        for ready in engine_cores:
            error = EngineDeadError(f"engine core {ready.engine_index} (pid {ready.pid}) has ended", ready.engine_index)
            try:
                self._watched[os.pidfd_open(ready.pid)] = error
            except ProcessLookupError:
                self.fail(error)

    async def get(self) -> Bag:
        """The next bag; raises the error where there will be none."""
        self.start()
        if self._bags.empty():
            self.check_alive()
        item = await self._bags.get()
        if isinstance(item, EngineDeadError):
            raise copy.copy(item)
        return item

    def check_alive(self) -> None:
        """Raise the error that stands; a new one each time, since each raising adds to an error's traceback."""
        if self.error is not None:
            raise copy.copy(self.error)

    def expect(self, number: int) -> asyncio.Future[Any]:
        """A future for the answer to call or ping `number`, which is about to be sent."""
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: self._waiting.pop(number, None))
        return future

    def fail(self, error: EngineDeadError) -> None:
        """Nothing more will come. On the loop, or where none has been used."""
        self.error = error = self.error or error
        if self._failed:
            return
        self._failed = True
        self._stop_reading(self._watched)
        if self.loop is not None and self.loop.is_closed():  # nobody waits any more
            return
        self._read()
        self._bags.put_nowait(error)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(copy.copy(error))

    def fail_threadsafe(self, error: EngineDeadError) -> None:
        """As `fail`, from any thread: the error stands at once, those that wait hear of it on the loop."""
        self.error = self.error or error
        if self.loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits
                self.loop.call_soon_threadsafe(self.fail, error)

    def close(self) -> None:
        """Stop reading and close the sockets; on the loop where it runs."""
        self._stop_reading([*self._watched, *self._sockets])
        for pidfd in self._watched:
            os.close(pidfd)
        for socket in self._sockets.values():
            socket.close(linger=0)
        self._watched, self._sockets = {}, {}

    def _stop_reading(self, descriptors: Iterable[int]) -> None:
        for descriptor in descriptors:
            if self.loop is not None and not self.loop.is_closed():
                self.loop.remove_reader(descriptor)

    def _read(self) -> None:
        for socket in self._sockets.values():
            with contextlib.suppress(zmq.Again):
                while True:
                    self._open(socket.recv_multipart(zmq.NOBLOCK))

    def _open(self, frames: list[bytes]) -> None:
        if frames[0] == ENGINE_CORE_DEAD and len(frames) == 2:
            self.on_last_word()
            index = int.from_bytes(frames[1], "little")
            self.fail(EngineDeadError(f"engine core {index} met a fatal error and ended; its traceback is above", index))
            return
        t_received, size = now_ns(), sum(map(len, frames))
        try:
            outputs = self._decoder.decode(frames)
        except Exception as error:  # a letter that cannot be read must not stop those behind it
            detailed = logger.isEnabledFor(logging.DEBUG)
            logger.error("a message to the front end was dropped (%d bytes): %s", size, error, exc_info=detailed)
            return
        t_decoded = now_ns()
        if outputs.utility_output is not None:
            self._answer(outputs.utility_output)
        if outputs.pong is not None:
            self._answer(UtilityOutput(outputs.pong))
        if outputs.outputs or outputs.scheduler_stats is not None:
            self._bags.put_nowait(Bag(outputs, t_received, t_decoded, size))

    def _answer(self, answer: UtilityOutput) -> None:
        waiting = self._waiting.get(answer.call_id)
        if waiting is None or waiting.done():
            logger.warning("an answer to call %d, which nobody waits for, was dropped", answer.call_id)
        elif answer.failure_message is not None:
            waiting.set_exception(RuntimeError(answer.failure_message))
        else:
            waiting.set_result(answer.result)
