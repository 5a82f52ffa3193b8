"""The coordinator passes on how busy each engine core is."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq

from tests.engine_core.core_process import WAIT_S, CoreProcess, toy_config
from vllm_lite.engine_core.coordinator import ANYWAY_EVERY_S, CHANGED_EVERY_S, DPCoordinator, LoadBoard
from vllm_lite.engine_core.executor.toy import expected_tokens
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.messages import CoordinatorStats, EngineCoreOutputs, EngineLoad
from vllm_lite.wire.serial_utils import MsgpackEncoder
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


class Listener:
    """A front end's ear."""

    def __init__(self, ctx: zmq.Context[zmq.Socket[bytes]], coordinator: DPCoordinator) -> None:
        self.socket = make_zmq_socket(ctx, coordinator.get_stats_publish_address(), zmq.SUB, bind=False)
        self.socket.subscribe(b"")

    def next(self) -> list[EngineLoad]:
        assert self.socket.poll(WAIT_S * 1000), "the coordinator says nothing"
        return msgspec.msgpack.decode(self.socket.recv(), type=CoordinatorStats).loads

    def until(self, wanted: Callable[[list[EngineLoad]], bool]) -> list[EngineLoad]:
        while not wanted(loads := self.next()):
            pass
        return loads


@contextlib.contextmanager
def coordinating(num_engines: int, folder: Path) -> Iterator[tuple[DPCoordinator, Listener]]:
    coordinator = DPCoordinator(num_engines, folder)
    with zmq.Context() as ctx:
        listener = Listener(ctx, coordinator)
        try:
            yield coordinator, listener
        finally:
            listener.socket.close(linger=0)
            coordinator.close()
    coordinator.close()
    assert coordinator.process.returncode == 0


def bag(engine_index: int, running: int, waiting: int, usage: float = 0.0) -> EngineCoreOutputs:
    return EngineCoreOutputs(engine_index, scheduler_stats=SchedulerStats(running, waiting, usage))


def test_figures_are_said_soon_after_a_change_and_now_and_then_anyway() -> None:
    board = LoadBoard(2)
    assert board.due_in(1.0) == 0.0
    board.said(1.0)
    assert board.due_in(1.0) == ANYWAY_EVERY_S
    board.note(bag(1, 3, 4, 0.5))
    assert board.due_in(1.0) == pytest.approx(CHANGED_EVERY_S)
    assert board.due_in(1.0 + CHANGED_EVERY_S) == pytest.approx(0.0)
    board.said(2.0)
    board.note(bag(1, 3, 4, 0.5))  # nothing new
    assert board.due_in(2.0) == ANYWAY_EVERY_S
    board.say_at_once()
    assert board.due_in(2.0) == 0.0
    assert board.stats.loads == [EngineLoad(), EngineLoad(4, 3, 0.5)]


def test_what_belongs_to_no_engine_is_dropped() -> None:
    board = LoadBoard(2)
    board.note(bag(2, 1, 1))
    board.note(bag(-1, 1, 1))
    board.note(EngineCoreOutputs(0))
    assert board.stats.loads == [EngineLoad(), EngineLoad()]


def test_a_new_listener_hears_at_once_and_garbage_is_survived(folder: Path) -> None:
    with coordinating(2, folder) as (coordinator, listener), zmq.Context() as ctx:
        assert listener.next() == [EngineLoad(), EngineLoad()]
        engine = make_zmq_socket(ctx, coordinator.get_engine_address(), zmq.PUSH, bind=False)
        with engine:
            for frames in ([b""], [b"\xc1"], [b"\x91" * 5000], MsgpackEncoder().encode(bag(1, 2, 3))):
                engine.send_multipart(frames)
            assert listener.until(lambda loads: loads[1] == EngineLoad(3, 2))[0] == EngineLoad()
            late = Listener(ctx, coordinator)
            assert late.next()[1] == EngineLoad(3, 2)
            late.socket.close(linger=0)


@pytest.mark.parametrize("count", [2, 4])
def test_engines_report_while_they_answer_on_their_own(folder: Path, count: int) -> None:
    with coordinating(count, folder) as (coordinator, listener), contextlib.ExitStack() as stack:
        config = toy_config(toy_step_time=0.02)
        config.scheduler_config.max_num_seqs = 2
        address = coordinator.get_engine_address()
        engines = [stack.enter_context(CoreProcess(config, engine_index=i, coordinator=address)) for i in range(count)]
        for engine in engines:
            engine.start()
        for name in ("a", "b", "c"):
            engines[-1].add(name, PROMPT, SamplingParams(max_tokens=60))
        loads = listener.until(lambda loads: (loads[-1].num_waiting_reqs, loads[-1].num_running_reqs) == (1, 2))
        assert loads[-1].kv_cache_usage > 0
        assert loads[:-1] == [EngineLoad()] * (count - 1)
        engines[0].add("d", PROMPT)
        assert engines[0].answers("d")["d"][0] == expected_tokens(PROMPT, 5)
        answers = engines[-1].answers("a", "b", "c")
        assert all(answer[0] == expected_tokens(PROMPT, 60) for answer in answers.values())
        listener.until(lambda loads: loads == [EngineLoad()] * count)
        for engine in engines:
            engine.stop()


PARENT = """
import os, sys
sys.path.insert(0, {root!r})
from vllm_lite.engine_core.coordinator import DPCoordinator
coordinator = DPCoordinator(2, {folder!r})
print(coordinator.process.pid, flush=True)
os.kill(os.getpid(), {signal})
"""


def test_it_ends_with_its_parent(folder: Path) -> None:
    script = PARENT.format(root=os.getcwd(), folder=str(folder), signal=int(signal.SIGKILL))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        coordinator = psutil.Process(int(parent.stdout.readline()))
        parent.wait(WAIT_S)
        coordinator.wait(5)
