"""What comes to the engine core's doors at once is taken one by one."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

import zmq

from tests.engine_core.core_process import WAIT_S, add_letter
from vllm_lite.engine_core.core.io_threads import CoreQueues, InputThread
from vllm_lite.engine_core.request import Request
from vllm_lite.wire.messages import PROTOCOL_VERSION, EngineCoreReadyResponse, EngineCoreRequest, EngineCoreRequestType
from vllm_lite.wire.serial_utils import MsgpackEncoder

READY = EngineCoreReadyResponse(PROTOCOL_VERSION, 0, 1, 2048, 1000, 16, "float32", "cpu", 49152, "none")


def test_a_last_letter_and_the_end_of_its_connection_that_come_in_one_round() -> None:
    """The thread is held at the first letter until both are there."""
    held, go = threading.Event(), threading.Event()
    queue: SimpleQueue[tuple[EngineCoreRequestType, Any]] = SimpleQueue()

    def preprocess(letter: EngineCoreRequest) -> Request:
        held.set()
        go.wait(WAIT_S)
        return Request.from_engine_core_request(letter, None)

    with (
        zmq.Context() as theirs,
        zmq.Context() as ours,
        theirs.socket(zmq.ROUTER) as stays,
        theirs.socket(zmq.ROUTER) as leaves,
    ):
        routers = [stays, leaves]
        addresses = [f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}" for router in routers]
        thread = InputThread(
            ours, addresses, READY, preprocess, CoreQueues(queue, SimpleQueue(), SimpleQueue()), trace_dir=None
        )
        thread.start()
        identities = [router.recv_multipart()[0] for router in routers]

        def add(client: int, request_id: str) -> None:
            body = MsgpackEncoder().encode(add_letter(request_id, [1, 2], client_index=client))
            routers[client].send_multipart([identities[client], EngineCoreRequestType.ADD.value, *body])

        add(0, "first")
        assert held.wait(WAIT_S)
        add(1, "last")
        leaves.close(linger=WAIT_S * 1000)
        assert list(thread._monitors)[1].poll(WAIT_S * 1000)
        go.set()
        kinds = [queue.get(timeout=WAIT_S)[0] for _ in range(3)]
        assert kinds == [EngineCoreRequestType.ADD, EngineCoreRequestType.ADD, EngineCoreRequestType.CLIENT_GONE]
        add(0, "afterwards")
        assert queue.get(timeout=WAIT_S)[0] is EngineCoreRequestType.ADD
        ours.term()
        thread.join(WAIT_S)
    assert not thread.is_alive()
    assert queue.empty()
