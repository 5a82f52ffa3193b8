"""The threads at the engine core's doors: one opens letters and queues them, one packs bags and sends them.

Process: engine core. Knows: sockets, frames, the queues to and from the main thread. Does not know: the scheduler, or what a
step is. Whatever comes in broken is logged and dropped, or becomes that request's error; nothing that arrives ends a thread.
Mirrors: vllm/v1/engine/core.py (process_input_sockets, process_output_sockets)
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple

import msgspec
import zmq

from vllm_lite.engine_core.request import Request
from vllm_lite.tracing.context import SpanContext, new_span_id, parent_of, parse_traceparent
from vllm_lite.tracing.recorder import Recorder, now_ns
from vllm_lite.tracing.records import Receive, ReceiveAbort, Send
from vllm_lite.wire.messages import (
    EngineCoreAbort,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineCoreRequestType,
    UtilityOutput,
)
from vllm_lite.wire.serial_utils import MsgpackDecoder, MsgpackEncoder
from vllm_lite.wire.sockets import make_zmq_socket

logger = logging.getLogger(__name__)

OUTPUT_LINGER_MS = 4000  # ENGINE_CORE_DEAD still leaves a dying process
COORDINATOR = -1  # as a client index

InputQueue = SimpleQueue[tuple[EngineCoreRequestType, Any]]


class Rejected(NamedTuple):
    """An ADD that did not become a request; its sender is told why."""

    request_id: str
    client_index: int
    error: str
    trace: int | None = None  # as in Request


class UtilityCall(msgspec.Struct, array_like=True):
    """A UTILITY body. The caller's span, where it is traced; and when the call was received, set by who received it."""

    client_index: int
    call_id: int
    method: str
    args: list[Any]
    traceparent: str | None = None
    t_received: int = 0


class _Ping(msgspec.Struct, array_like=True):
    client_index: int
    number: int


class OutputItem(NamedTuple):
    """A bag for one client; None: that client is gone, and whatever else is for it is dropped."""

    client_index: int
    outputs: EngineCoreOutputs | None
    parent_span_id: str | None = None  # the step's span, where the bag is traced
    t_queued: int = 0


OutputQueue = SimpleQueue[OutputItem | bytes | None]  # bytes: a word for every client; None: the end of sending


class InputThread(threading.Thread):
    """Receives from every front end; says `ready` to each first. Ends when the ZMQ context is terminated.

    ADDs are preprocessed here, off the main thread. ABORTs go to both queues: to `aborts_queue` to take effect while a step
    runs, and to `input_queue` so that none overtakes its ADD. PINGs are answered here, so that an answer means both threads
    live. A front end whose connection closes is gone, however it ended: CLIENT_GONE is queued behind what it had sent.
    """

    def __init__(
        self,
        ctx: zmq.Context[Any],
        addresses: list[str],
        identity: bytes,
        ready: bytes,
        *,
        preprocess: Callable[[EngineCoreRequest], Request],
        input_queue: InputQueue,
        aborts_queue: SimpleQueue[EngineCoreAbort],
        output_queue: OutputQueue,
        trace_dir: str | None,
        on_failure: Callable[[], None],
    ) -> None:
        super().__init__(name="input", daemon=True)
        self._on_failure = on_failure
        self._preprocess = preprocess
        self._input_queue, self._aborts_queue, self._output_queue = input_queue, aborts_queue, output_queue
        self._recorder = Recorder(trace_dir, "engine-core", "input") if trace_dir is not None else None
        self._numbers = itertools.count(1)  # of traced requests, in this process's spools
        self._add_decoder = MsgpackDecoder(EngineCoreRequest)
        self._handlers: dict[bytes, Callable[[list[bytes], int], None]] = {
            EngineCoreRequestType.ADD.value: self._on_add,
            EngineCoreRequestType.ABORT.value: self._on_abort,
            EngineCoreRequestType.UTILITY.value: self._on_utility,
            EngineCoreRequestType.PING.value: self._on_ping,
        }
        self._sockets = [make_zmq_socket(ctx, address, zmq.DEALER, bind=False, identity=identity) for address in addresses]
        self._monitors = {socket.get_monitor_socket(zmq.EVENT_DISCONNECTED): socket for socket in self._sockets}
        self._ready = ready

    def run(self) -> None:
        """Receive until the context ends."""
        poller = zmq.Poller()
        for monitor, socket in self._monitors.items():
            socket.send(self._ready)
            poller.register(socket, zmq.POLLIN)
            poller.register(monitor, zmq.POLLIN)
        try:
            while True:
                for socket, _ in poller.poll():
                    frames = socket.recv_multipart()
                    if socket in self._monitors:
                        self._lose(self._monitors[socket])
                    else:
                        self._receive(frames)
        except zmq.ContextTerminated:
            pass
        except Exception:
            logger.exception("the input thread failed")
            self._on_failure()
        finally:
            for socket in (*self._monitors, *self._sockets):
                socket.close(linger=0)
            if self._recorder is not None:
                self._recorder.close()

    def _lose(self, socket: zmq.Socket[Any]) -> None:
        while socket.poll(0):  # what it had sent before
            self._receive(socket.recv_multipart())
        self._input_queue.put((EngineCoreRequestType.CLIENT_GONE, self._sockets.index(socket)))

    def _receive(self, frames: list[bytes]) -> None:
        t0 = now_ns()
        handler = self._handlers.get(frames[0])
        if handler is None or len(frames) < 2:
            logger.warning("dropped a message of unknown type %r with %d frames", frames[0][:16], len(frames))
            return
        try:
            handler(frames[1:], t0)
        except Exception as error:
            logger.warning("dropped a message of type %r that cannot be read: %s", frames[0], error)

    def _on_add(self, frames: list[bytes], t0: int) -> None:
        try:
            letter = self._add_decoder.decode(frames)
        except msgspec.DecodeError as error:
            self._reject_undecoded(frames, error)
            return
        parent = parent_of(letter.trace_headers)
        traced = parent is not None and parent.sampled and self._recorder is not None and self._recorder.refresh() > 0
        number = next(self._numbers) if traced else None
        queued: Request | Rejected
        try:
            queued = self._preprocess(letter)
            queued.trace = number
        except Exception as error:
            queued = Rejected(letter.request_id, letter.client_index, str(error), number)
        self._input_queue.put((EngineCoreRequestType.ADD, queued))
        if number is not None and parent is not None:
            self._record_receive(number, letter.request_id, t0, parent, sum(map(len, frames)))

    def _record_receive(self, number: int, request_id: str, t0: int, parent: SpanContext, body_size: int) -> None:
        assert self._recorder is not None
        self._recorder.append(
            Receive(number, request_id, t0, now_ns(), parent.trace_id, parent.span_id, new_span_id(), body_size)
        )
        self._recorder.flush()

    def _reject_undecoded(self, frames: list[bytes], error: msgspec.DecodeError) -> None:
        """Tell the sender where the letter still says who that is; else the DecodeError goes on."""
        fields = MsgpackDecoder[Any]().decode(frames)
        client_index_at = EngineCoreRequest.__struct_fields__.index("client_index")
        match fields:
            case [str(request_id), *_]:
                client_index = fields[client_index_at] if len(fields) > client_index_at else 0
                if isinstance(client_index, int):
                    rejected = Rejected(request_id, client_index, f"the request cannot be decoded: {error}")
                    self._input_queue.put((EngineCoreRequestType.ADD, rejected))
                    return
        raise error

    def _on_abort(self, frames: list[bytes], t0: int) -> None:
        abort = MsgpackDecoder(EngineCoreAbort).decode(frames)
        self._aborts_queue.put(abort)
        self._input_queue.put((EngineCoreRequestType.ABORT, abort))
        if abort.trace_headers and self._recorder is not None:
            ids = [request_id for request_id in abort.request_ids if request_id in abort.trace_headers]
            self._recorder.append(ReceiveAbort(ids, abort.reason, t0, abort.trace_headers))
            self._recorder.flush()

    def _on_utility(self, frames: list[bytes], t0: int) -> None:
        call = MsgpackDecoder(UtilityCall).decode(frames)
        call.t_received = t0
        self._input_queue.put((EngineCoreRequestType.UTILITY, call))

    def _on_ping(self, frames: list[bytes], t0: int) -> None:
        ping = MsgpackDecoder(_Ping).decode(frames)
        self._output_queue.put(OutputItem(ping.client_index, EngineCoreOutputs(pong=ping.number)))


class OutputThread(threading.Thread):
    """Encodes and sends what the main thread queues, until it queues the end. `addresses` are by client index."""

    def __init__(
        self,
        ctx: zmq.Context[Any],
        addresses: dict[int, str],
        *,
        engine_index: int,
        output_queue: OutputQueue,
        trace_dir: str | None,
        on_failure: Callable[[], None],
    ) -> None:
        super().__init__(name="output", daemon=True)
        self._engine_index = engine_index
        self._queue = output_queue
        self._recorder = Recorder(trace_dir, "engine-core", "output") if trace_dir is not None else None
        self._on_failure = on_failure
        self._encoder = MsgpackEncoder()
        self._sockets = {
            i: make_zmq_socket(ctx, a, zmq.PUSH, bind=False, linger=0 if i == COORDINATOR else OUTPUT_LINGER_MS)
            for i, a in addresses.items()
        }

    def run(self) -> None:
        """Send until the end is queued."""
        try:
            while (item := self._queue.get()) is not None:
                if isinstance(item, bytes):
                    for client_index, socket in self._sockets.items():
                        if client_index != COORDINATOR and not socket.closed:
                            socket.send(item)
                elif item.outputs is not None:
                    self._send(item, item.outputs)
                elif item.client_index in self._sockets:
                    self._sockets[item.client_index].close(linger=0)
        except Exception:
            logger.exception("the output thread failed")
            self._on_failure()
        finally:
            for socket in self._sockets.values():
                socket.close()
            if self._recorder is not None:
                self._recorder.close()

    def _send(self, item: OutputItem, outputs: EngineCoreOutputs) -> None:
        socket = self._sockets.get(item.client_index)
        if socket is None or socket.closed:
            if socket is None:
                logger.warning("dropped a bag for client %r; there are %s", item.client_index, list(self._sockets))
            return
        t0 = now_ns()
        outputs.engine_index = self._engine_index
        frames = self._encode(outputs)
        t1 = now_ns()
        socket.send_multipart(frames, copy=False)
        if item.parent_span_id is not None and self._recorder is not None:
            context = parse_traceparent(outputs.step_trace)
            assert context is not None
            self._recorder.append(
                Send(
                    context.trace_id,
                    item.parent_span_id,
                    context.span_id,
                    item.t_queued,
                    t0,
                    t1,
                    now_ns(),
                    item.client_index,
                    len(outputs.outputs),
                    sum(map(len, frames)),
                )
            )
            self._recorder.flush()

    def _encode(self, outputs: EngineCoreOutputs) -> list[Any]:
        try:
            return self._encoder.encode(outputs)
        except TypeError as error:
            call = outputs.utility_output
            if call is None:
                raise
            logger.warning("the result of utility call %d cannot be sent: %s", call.call_id, error)
            failure = UtilityOutput(call.call_id, f"the call's result cannot be sent: {error}")
            return self._encoder.encode(EngineCoreOutputs(self._engine_index, utility_output=failure))
