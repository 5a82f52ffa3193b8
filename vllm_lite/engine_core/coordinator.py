"""Tells every front end how busy every engine core is: `python -m vllm_lite.engine_core.coordinator ...`.

Process: the coordinator, a process of its own where several front ends share engine cores (one alone sees all their figures in
its own bags). Knows: the newest word of each engine core, which it passes on as it came. Does not know: requests, front ends.
vLLM's coordinator also runs waves: engine cores whose experts are spread over all of them must step together, idle ones too,
from the first request that comes to any until the last has ended everywhere. Here each engine core holds its whole model and
steps when it has something to do, so there is no wave to announce.
Mirrors: vllm/v1/engine/coordinator.py
"""

import argparse
import logging
import signal
import sys
import time
from typing import Any

import zmq

from vllm_lite.wire.messages import EngineCoreOutputs
from vllm_lite.wire.serial_utils import MsgpackDecoder
from vllm_lite.wire.sockets import make_zmq_socket

logger = logging.getLogger(__name__)

CHANGED_EVERY_S = 0.1
ANYWAY_EVERY_S = 5.0


class DPCoordinator:
    """The newest word of each of `num_engines` engine cores, and when (monotonic seconds) all are to be said next."""

    def __init__(self, num_engines: int) -> None:
        self._num_engines = num_engines
        self._decoder = MsgpackDecoder(EngineCoreOutputs)
        self._said_at = 0.0
        self.newest: dict[int, list[bytes]] = {}
        self.due = 0.0

    def note(self, frames: list[bytes]) -> None:
        """An engine core's figures; what cannot be read, and what belongs to no engine core, is dropped."""
        try:
            outputs = self._decoder.decode(frames)
        except Exception as error:
            logger.warning("dropped a message that cannot be read: %s", error)
            return
        index = outputs.engine_index
        if outputs.scheduler_stats is None or not 0 <= index < self._num_engines:
            logger.warning("dropped a message of engine core %d without figures, or of no such number", index)
            return
        self.newest[index] = frames
        self.due = min(self.due, self._said_at + CHANGED_EVERY_S)

    def say(self, publish: zmq.Socket[Any], now: float) -> None:
        """Tell all that is known."""
        for frames in self.newest.values():
            publish.send_multipart(frames)
        self._said_at, self.due = now, now + ANYWAY_EVERY_S

    def serve(self, publish: zmq.Socket[Any], engines: zmq.Socket[Any], death_fd: int) -> None:
        """Pass figures on until the parent is gone."""
        poller = zmq.Poller()
        for source in (publish, engines, death_fd):
            poller.register(source, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(int(max(0.0, self.due - time.monotonic()) * 1000) + 1))
            if death_fd in ready:
                return
            if publish in ready and publish.recv().startswith(b"\x01"):  # a subscription
                self.due = 0.0
            if engines in ready:
                self.note(engines.recv_multipart())
            now = time.monotonic()
            if now >= self.due:
                self.say(publish, now)


def main(argv: list[str] | None = None) -> int:
    """Run the coordinator until its parent is gone."""
    parser = argparse.ArgumentParser(prog="vllm_lite.engine_core.coordinator")
    parser.add_argument("--num-engines", type=int, required=True)
    parser.add_argument("--publish", required=True, help="where to bind the socket that front ends subscribe to")
    parser.add_argument("--engines", required=True, help="where to bind the socket that engine cores push to")
    parser.add_argument("--death-fd", type=int, required=True, help="read end of a pipe that closes when the parent dies")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    with zmq.Context() as ctx:
        publish = make_zmq_socket(ctx, args.publish, zmq.XPUB, bind=True)
        engines = make_zmq_socket(ctx, args.engines, zmq.PULL, bind=True)
        with publish, engines:
            DPCoordinator(args.num_engines).serve(publish, engines, args.death_fd)
    return 0


if __name__ == "__main__":
    sys.exit(main())
