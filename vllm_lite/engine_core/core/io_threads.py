"""The threads at the engine core's doors: one opens letters and queues them, one packs bags and sends them.

Process: engine core. Knows: sockets, frames, the queues to and from the main thread. Does not know: the scheduler, or what a
step is. Whatever comes in broken is logged and dropped, or becomes that request's error; nothing that arrives ends a thread.
Mirrors: vllm/v1/engine/core.py (process_input_sockets, process_output_sockets)
"""

import itertools
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple

import msgspec
import zmq

from vllm_lite.engine_core.request import Request
from vllm_lite.tracing.context import new_span_id, parent_of, parse_traceparent
from vllm_lite.tracing.recorder import Recorder, now_ns
from vllm_lite.tracing.records import Receive, ReceiveAbort, Send
from vllm_lite.wire.messages import (
    EngineCoreAbort,
    EngineCoreOutputs,
    EngineCoreReadyResponse,
    EngineCoreRequest,
    EngineCoreRequestType,
    UtilityOutput,
)
from vllm_lite.wire.serial_utils import MsgpackDecoder, MsgpackEncoder
from vllm_lite.wire.sockets import make_zmq_socket

logger = logging.getLogger(__name__)

OUTPUT_LINGER_MS = 4000  # ENGINE_CORE_DEAD still leaves a dying process
COORDINATOR = -1  # as a client index


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


class OutputItem(NamedTuple):
    """A bag for one client; None: that client is gone, and whatever else is for it is dropped."""

    client_index: int
    outputs: EngineCoreOutputs | None
    parent_span_id: str | None = None  # the step's span, where the bag is traced
    t_queued: int = 0


class CoreQueues(NamedTuple):
    """Between the main thread and the two at the doors. On `output`, bytes are a word for every client, None is the end."""

    input: SimpleQueue[tuple[EngineCoreRequestType, Any]]
    aborts: SimpleQueue[EngineCoreAbort]
    output: SimpleQueue[OutputItem | bytes | None]


class _IoThread(threading.Thread):
    """Serves until its work ends or the ZMQ context does, then closes its sockets; the main thread hears of any other end."""

    def __init__(self, name: str, queues: CoreQueues, trace_dir: str | None) -> None:
        super().__init__(name=name, daemon=True)
        self._queues = queues
        self._recorder = Recorder(trace_dir, "engine-core", name) if trace_dir is not None else None
        self._to_close: list[zmq.Socket[Any]] = []

    def run(self) -> None:
        """The thread's body."""
        try:
            self._serve()
        except zmq.ContextTerminated:
            pass
        except Exception:
            logger.exception("the %s thread failed", self.name)
            self._queues.input.put((EngineCoreRequestType.EXECUTOR_FAILED, f"the {self.name} thread failed"))
        finally:
            for socket in self._to_close:
                socket.close()
            if self._recorder is not None:
                self._recorder.close()

    def _serve(self) -> None:
        raise NotImplementedError


class InputThread(_IoThread):
    """Receives from every front end; says `ready` to each first.

    ADDs are preprocessed here, off the main thread. ABORTs go to two queues: to `aborts` to take effect while a step runs, and
    to `input` so that none overtakes its ADD. PINGs are answered here, so that an answer means both threads live. A front end
    whose connection closes is gone, however it ended: CLIENT_GONE is queued behind what it had sent.
    """

    def __init__(
        self,
        ctx: zmq.Context[Any],
        addresses: list[str],
        ready: EngineCoreReadyResponse,
        preprocess: Callable[[EngineCoreRequest], Request],
        queues: CoreQueues,
        *,
        trace_dir: str | None,
    ) -> None:
        super().__init__("input", queues, trace_dir)
        self._preprocess = preprocess
        self._numbers = itertools.count(1)  # of traced requests, in this process's spools
        self._add_decoder = MsgpackDecoder(EngineCoreRequest)
        self._handlers: dict[bytes, Callable[[list[bytes], int], None]] = {
            EngineCoreRequestType.ADD.value: self._on_add,
            EngineCoreRequestType.ABORT.value: self._on_abort,
            EngineCoreRequestType.UTILITY.value: self._on_utility,
            EngineCoreRequestType.PING.value: self._on_ping,
        }
        identity, self._ready = ready.engine_index.to_bytes(2, "little"), msgspec.msgpack.encode(ready)
        self._sockets = [make_zmq_socket(ctx, address, zmq.DEALER, bind=False, identity=identity) for address in addresses]
        self._monitors = {socket.get_monitor_socket(zmq.EVENT_DISCONNECTED): socket for socket in self._sockets}
        self._to_close = [*self._monitors, *self._sockets]

    def _serve(self) -> None:
        poller = zmq.Poller()
        for socket in self._to_close:
            poller.register(socket, zmq.POLLIN)
        for socket in self._sockets:
            socket.send(self._ready)
        while True:
            for socket, _ in poller.poll():
                try:
                    frames = socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:  # `_lose` has read it in this very round
                    continue
                if socket in self._monitors:
                    self._lose(self._monitors[socket])
                else:
                    self._receive(frames)

    def _lose(self, socket: zmq.Socket[Any]) -> None:
        while socket.poll(0):  # what it had sent before
            self._receive(socket.recv_multipart())
        self._queues.input.put((EngineCoreRequestType.CLIENT_GONE, self._sockets.index(socket)))

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
        self._queues.input.put((EngineCoreRequestType.ADD, queued))
        if number is not None and parent is not None and self._recorder is not None:
            origin, body_size = (parent.trace_id, parent.span_id), sum(map(len, frames))
            self._recorder.append(Receive(number, letter.request_id, t0, now_ns(), *origin, new_span_id(), body_size))
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
                    self._queues.input.put((EngineCoreRequestType.ADD, rejected))
                    return
        raise error

    def _on_abort(self, frames: list[bytes], t0: int) -> None:
        abort = MsgpackDecoder(EngineCoreAbort).decode(frames)
        self._queues.aborts.put(abort)
        self._queues.input.put((EngineCoreRequestType.ABORT, abort))
        if abort.trace_headers and self._recorder is not None:
            ids = [request_id for request_id in abort.request_ids if request_id in abort.trace_headers]
            self._recorder.append(ReceiveAbort(ids, abort.reason, t0, abort.trace_headers))
            self._recorder.flush()

    def _on_utility(self, frames: list[bytes], t0: int) -> None:
        call = MsgpackDecoder(UtilityCall).decode(frames)
        call.t_received = t0
        self._queues.input.put((EngineCoreRequestType.UTILITY, call))

    def _on_ping(self, frames: list[bytes], t0: int) -> None:
        client_index, number = MsgpackDecoder(tuple[int, int]).decode(frames)
        self._queues.output.put(OutputItem(client_index, EngineCoreOutputs(pong=number)))


class OutputThread(_IoThread):
    """Encodes and sends what the main thread queues, until it queues the end. `addresses` are by client index."""

    def __init__(
        self, ctx: zmq.Context[Any], addresses: dict[int, str], engine_index: int, queues: CoreQueues, *, trace_dir: str | None
    ) -> None:
        super().__init__("output", queues, trace_dir)
        self._engine_index = engine_index
        self._encoder = MsgpackEncoder()
        self._sockets: dict[int, zmq.Socket[Any]] = {}
        for client_index, address in addresses.items():
            linger = 0 if client_index == COORDINATOR else OUTPUT_LINGER_MS
            self._sockets[client_index] = make_zmq_socket(ctx, address, zmq.PUSH, bind=False, linger=linger)
        self._to_close = list(self._sockets.values())

    def _serve(self) -> None:
        while (item := self._queues.output.get()) is not None:
            if isinstance(item, bytes):
                for client_index, socket in self._sockets.items():
                    if client_index != COORDINATOR and not socket.closed:
                        socket.send_multipart([item, self._engine_index.to_bytes(2, "little")])
            elif item.client_index not in self._sockets:
                logger.warning("dropped a bag for client %r; there are %s", item.client_index, list(self._sockets))
            elif item.outputs is None:
                self._sockets[item.client_index].close(linger=0)
            elif not self._sockets[item.client_index].closed:
                self._send(item, item.outputs)

    def _send(self, item: OutputItem, outputs: EngineCoreOutputs) -> None:
        t0 = now_ns()
        outputs.engine_index = self._engine_index
        frames = self._encode(outputs)
        t1 = now_ns()
        self._sockets[item.client_index].send_multipart(frames, copy=False)
        if item.parent_span_id is not None and self._recorder is not None:
            context = parse_traceparent(outputs.step_trace)
            assert context is not None
            spans, times = (context.trace_id, item.parent_span_id, context.span_id), (item.t_queued, t0, t1, now_ns())
            sizes = len(outputs.outputs), sum(map(len, frames))
            self._recorder.append(Send(*spans, *times, item.client_index, *sizes))
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
