from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vllm_lite.tracing.control_page import ControlPage
from vllm_lite.tracing.reader import RunReader
from vllm_lite.tracing.recorder import Recorder
from vllm_lite.tracing.records import Bye, EngineDead, Phase, Record, Takes


def read(run_dir: Path) -> list[Record]:
    return [record for _, record in RunReader(run_dir).poll()]


def test_a_frame_holds_what_was_appended_since_the_last(run_dir: Path) -> None:
    recorder = Recorder(run_dir, "frontend", "loop")
    recorder.append(Phase("a", 1, 2))
    recorder.append(Phase("b", 3, 4))
    assert read(run_dir) == []
    recorder.flush()
    recorder.flush()
    assert read(run_dir) == [Phase("a", 1, 2), Phase("b", 3, 4)]
    recorder.close(t=9)
    assert read(run_dir)[2:] == [Bye(9)]


def test_takes_are_columns_written_with_the_next_frame(run_dir: Path) -> None:
    recorder = Recorder(run_dir, "frontend", "loop")
    recorder.take((1, 10))
    recorder.take((3, 11))
    recorder.flush()
    recorder.take((1, 12))
    recorder.close(t=20)
    assert read(run_dir) == [Takes([1, 3], [10, 11]), Takes([1], [12]), Bye(20)]


def test_the_level_is_the_control_pages(run_dir: Path) -> None:
    recorder = Recorder(run_dir, "frontend", "loop")
    assert recorder.level == 3
    page = ControlPage.open(run_dir)
    page.level = 1
    assert recorder.level == 3
    assert recorder.refresh() == recorder.level == 1
    page.count = 1
    assert recorder.admit()
    assert not recorder.admit()
    page.close()
    recorder.close()


def test_a_failed_spool_is_level_0(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(run_dir, "frontend", "loop")
    monkeypatch.setattr(os, "open", lambda *args: (_ for _ in ()).throw(OSError("no")))
    recorder.append(Phase("a", 1, 2))
    recorder.flush()
    assert recorder.refresh() == 0
    recorder.close()


def test_a_flush_keeps_nothing_whatever_happens(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(run_dir, "frontend", "loop")
    recorder.append(Phase("a", 1, 2))
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            recorder.flush()
    recorder.append(Phase("b", 3, 4))
    recorder.close(t=9)
    assert read(run_dir) == [Phase("b", 3, 4), Bye(9)]


def test_a_bye_is_now_by_default(run_dir: Path) -> None:
    before = time.monotonic_ns()
    recorder = Recorder(run_dir, "frontend", "loop")
    recorder.append(Phase("a", 1, 2))
    recorder.close()
    [bye] = read(run_dir)[1:]
    assert isinstance(bye, Bye)
    assert before <= bye.t <= time.monotonic_ns()


KILLED = """
import sys
from vllm_lite.tracing.recorder import Recorder
from vllm_lite.tracing.records import EngineDead
recorder = Recorder(sys.argv[1], "frontend", "loop")
number = 0
while True:
    recorder.append(EngineDead(number, number))
    recorder.flush()
    print(number, flush=True)
    number += 1
"""


def test_a_killed_process_loses_nothing_that_it_told_anyone(run_dir: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(run_dir)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    told = [int(child.stdout.readline()) for _ in range(500)]
    child.send_signal(signal.SIGKILL)
    told += [int(line) for line in child.stdout.read().splitlines() if line.strip()]
    child.wait()
    child.stdout.close()
    reader = RunReader(run_dir)
    written = [record.engine_index for _, record in reader.poll() if isinstance(record, EngineDead)]
    assert written == list(range(len(written)))
    assert len(told) - 1 <= len(written)
    assert reader.torn <= 1
