"""The coordinator passes on how busy each engine core is."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zmq

from tests.engine_core.core_process import WAIT_S, CoreProcess, toy_config
from vllm_lite.engine_core.coordinator import ANYWAY_EVERY_S, CHANGED_EVERY_S, DPCoordinator
from vllm_lite.engine_core.executor.toy import expected_tokens
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.messages import EngineCoreOutputs
from vllm_lite.wire.serial_utils import MsgpackDecoder, MsgpackEncoder
from vllm_lite.wire.sockets import ipc_folder, make_zmq_socket
from vllm_lite.wire.stats import SchedulerStats

PROMPT = list(b"the quick brown fox")


@pytest.fixture
def folder() -> Iterator[Path]:
    path = ipc_folder()
    yield path
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


class Load(NamedTuple):
    waiting: int = 0
    running: int = 0
    usage: float = 0.0


class Listener:
    """A front end's ear, and what it has heard of each engine core."""

    def __init__(self, ctx: zmq.Context[Any], folder: Path) -> None:
        self.socket = make_zmq_socket(ctx, f"ipc://{folder}/stats", zmq.SUB, bind=False)
        self.socket.subscribe(b"")
        self.loads: dict[int, Load] = {}

    def until(self, wanted: Callable[[dict[int, Load]], bool]) -> None:
        while not wanted(self.loads):
            assert self.socket.poll(WAIT_S * 1000), "the coordinator says nothing"
            outputs = MsgpackDecoder(EngineCoreOutputs).decode(self.socket.recv_multipart())
            stats = outputs.scheduler_stats
            assert stats is not None
            load = Load(stats.num_waiting_reqs, stats.num_running_reqs, stats.kv_cache_usage)
            self.loads[outputs.engine_index] = load


@contextlib.contextmanager
def coordinating(num_engines: int, folder: Path) -> Iterator[Listener]:
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "vllm_lite.engine_core.coordinator", "--num-engines", str(num_engines)]
    command += ["--publish", f"ipc://{folder}/stats", "--engines", f"ipc://{folder}/loads", "--death-fd", str(read_end)]
    with subprocess.Popen(command, pass_fds=[read_end]) as process, zmq.Context() as ctx:
        os.close(read_end)
        listener = Listener(ctx, folder)
        try:
            yield listener
        finally:
            listener.socket.close(linger=0)
            os.close(write_end)  # as if the parent were gone
    assert process.returncode == 0


def word(engine_index: int, running: int, waiting: int) -> list[Any]:
    return MsgpackEncoder().encode(EngineCoreOutputs(engine_index, scheduler_stats=SchedulerStats(running, waiting)))


class Paper:
    """A socket that keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send_multipart(self, frames: Any) -> None:
        self.sent.append(frames)


def test_figures_are_said_soon_after_a_change_and_now_and_then_anyway() -> None:
    coordinator, publish = DPCoordinator(2), Paper()
    coordinator.say(publish, 1.0)  # type: ignore[arg-type]
    assert (publish.sent, coordinator.due) == ([], 1.0 + ANYWAY_EVERY_S)
    coordinator.note(word(1, 3, 4))
    assert coordinator.due == 1.0 + CHANGED_EVERY_S
    coordinator.say(publish, 2.0)  # type: ignore[arg-type]
    assert (publish.sent, coordinator.due) == ([coordinator.newest[1]], 2.0 + ANYWAY_EVERY_S)


def test_what_belongs_to_no_engine_is_dropped() -> None:
    coordinator = DPCoordinator(2)
    for frames in (word(2, 1, 1), word(-1, 1, 1), MsgpackEncoder().encode(EngineCoreOutputs(0)), [b""], [b"\xc1"]):
        coordinator.note(frames)
    assert coordinator.newest == {}


def test_a_new_listener_hears_at_once_and_garbage_is_survived(folder: Path) -> None:
    with (
        coordinating(2, folder) as listener,
        zmq.Context() as ctx,
        make_zmq_socket(ctx, f"ipc://{folder}/loads", zmq.PUSH, bind=False) as engine,
    ):
        for frames in ([b""], [b"\x91" * 5000], word(1, 2, 3)):
            engine.send_multipart(frames)
        listener.until(lambda loads: loads == {1: Load(3, 2)})
        late = Listener(ctx, folder)
        late.until(lambda loads: loads == {1: Load(3, 2)})
        late.socket.close(linger=0)


@pytest.mark.parametrize("count", [2, 4])
def test_engines_report_while_they_answer_on_their_own(folder: Path, count: int) -> None:
    with coordinating(count, folder) as listener, contextlib.ExitStack() as stack:
        config = toy_config(toy_step_time=0.02)
        config.scheduler_config.max_num_seqs = 2
        address = f"ipc://{folder}/loads"
        engines = [stack.enter_context(CoreProcess(config, engine_index=i, coordinator=address)) for i in range(count)]
        for engine in engines:
            engine.start()
        for name in ("a", "b", "c"):
            engines[-1].add(name, PROMPT, SamplingParams(max_tokens=60))
        listener.until(lambda loads: loads.get(count - 1, Load())[:2] == (1, 2))
        assert listener.loads.keys() == {count - 1}
        assert listener.loads[count - 1].usage > 0
        engines[0].add("d", PROMPT)
        assert engines[0].answers("d")["d"][0] == expected_tokens(PROMPT, 5)
        answers = engines[-1].answers("a", "b", "c")
        assert all(answer[0] == expected_tokens(PROMPT, 60) for answer in answers.values())
        listener.until(lambda loads: loads == dict.fromkeys((count - 1, 0), Load()))
        for engine in engines:
            engine.stop()
