"""Tells every front end how busy every engine core is: `python -m vllm_lite.engine_core.coordinator ...`.

Process: the coordinator, a process of its own under data parallel, wanted where several front ends share the engine cores (one
alone sees all their figures in its own bags). Knows: the newest load of each engine core. Does not know: requests.
vLLM's coordinator also runs waves: engine cores whose experts are spread over all of them must step together, idle ones too,
from the first request that comes to any until the last has ended everywhere. Here each engine core holds its whole model and
steps when it has something to do, so there is no wave to announce.
Mirrors: vllm/v1/engine/coordinator.py
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from typing import Any

import msgspec
import zmq

from vllm_lite.wire.messages import CoordinatorStats, EngineCoreOutputs, EngineLoad
from vllm_lite.wire.serial_utils import MsgpackDecoder
from vllm_lite.wire.sockets import make_zmq_socket

logger = logging.getLogger(__name__)

CHANGED_EVERY_S = 0.1
ANYWAY_EVERY_S = 5.0
CLOSE_GRACE_S = 2.0


class DPCoordinator:
    """Starts the process and ends it; it also ends with this one. `folder` holds its two sockets' files.

    Front ends subscribe (SUB) at `get_stats_publish_address()` to CoordinatorStats; engine cores are given
    `get_engine_address()` in their EngineInit.
    """

    def __init__(self, num_engines: int, folder: os.PathLike[str]) -> None:
        self._folder = os.fspath(folder)
        read_end, self._death_pipe = os.pipe()
        command = [sys.executable, "-m", "vllm_lite.engine_core.coordinator", "--num-engines", str(num_engines)]
        command += ["--publish", self.get_stats_publish_address(), "--engines", self.get_engine_address()]
        try:
            self.process = subprocess.Popen([*command, "--death-fd", str(read_end)], pass_fds=[read_end], process_group=0)
        finally:
            os.close(read_end)

    def get_stats_publish_address(self) -> str:
        """Where front ends subscribe."""
        return f"ipc://{self._folder}/coordinator-stats"

    def get_engine_address(self) -> str:
        """Where engine cores say how busy they are."""
        return f"ipc://{self._folder}/coordinator-engines"

    def close(self) -> None:
        """End the process. May be called more than once."""
        if self._death_pipe < 0:
            return
        os.close(self._death_pipe)
        self._death_pipe = -1
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(CLOSE_GRACE_S)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class LoadBoard:
    """What is known of each engine core, and when it is to be said again. Times are monotonic seconds."""

    def __init__(self, num_engines: int) -> None:
        self.stats = CoordinatorStats([EngineLoad() for _ in range(num_engines)])
        self._changed = False
        self._said_at = -ANYWAY_EVERY_S

    def note(self, outputs: EngineCoreOutputs) -> None:
        """An engine core's figures; those of an unknown one are dropped."""
        stats = outputs.scheduler_stats
        if stats is None or not 0 <= outputs.engine_index < len(self.stats.loads):
            logger.warning("dropped a message of engine core %d without figures, or of no such number", outputs.engine_index)
            return
        load = EngineLoad(stats.num_waiting_reqs, stats.num_running_reqs, stats.kv_cache_usage)
        self._changed |= load != self.stats.loads[outputs.engine_index]
        self.stats.loads[outputs.engine_index] = load

    def due_in(self, now: float) -> float:
        """Seconds until the figures are to be said; 0 where that is now."""
        return max(0.0, self._said_at + (CHANGED_EVERY_S if self._changed else ANYWAY_EVERY_S) - now)

    def say_at_once(self) -> None:
        """Somebody new listens."""
        self._said_at = -ANYWAY_EVERY_S

    def said(self, now: float) -> None:
        """They were said."""
        self._changed, self._said_at = False, now


def serve(board: LoadBoard, publish: zmq.Socket[Any], engines: zmq.Socket[Any], death_fd: int) -> None:
    """Pass figures on until the parent is gone."""
    decoder = MsgpackDecoder(EngineCoreOutputs)
    poller = zmq.Poller()
    for source in (publish, engines, death_fd):
        poller.register(source, zmq.POLLIN)
    while True:
        ready = dict(poller.poll(int(board.due_in(time.monotonic()) * 1000) + 1))
        if death_fd in ready:
            return
        if publish in ready and publish.recv().startswith(b"\x01"):  # a subscription
            board.say_at_once()
        if engines in ready:
            try:
                board.note(decoder.decode(engines.recv_multipart()))
            except Exception as error:
                logger.warning("dropped a message that cannot be read: %s", error)
        now = time.monotonic()
        if board.due_in(now) == 0.0:
            publish.send(msgspec.msgpack.encode(board.stats))
            board.said(now)


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
            serve(LoadBoard(args.num_engines), publish, engines, args.death_fd)
    return 0


if __name__ == "__main__":
    sys.exit(main())
