from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.tracing import make
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing import live
from vllm_lite.tracing.control_page import ControlPage
from vllm_lite.tracing.live import LiveRun, Tail, find_live_run, live_runs, switched
from vllm_lite.tracing.recorder import Recorder
from vllm_lite.tracing.spool import SpoolWriter


@pytest.fixture
def engine_dir(tmp_path: Path) -> Path:
    """A run of this process, at level 0, in a folder with a space in its name."""
    run_dir = tmp_path / "my run"
    run_dir.mkdir()
    ControlPage.create(run_dir, level=0, pid=os.getpid()).close()
    return run_dir


def live_run(run_dir: Path) -> LiveRun:
    """As it is to be found."""
    with closing(ControlPage.open(run_dir)) as page:
        return LiveRun(run_dir, os.getpid(), 0, page.anchor.wall_ns / 1e9)


def test_a_run_is_found_by_its_owner_by_its_folder_and_in_the_list(engine_dir: Path) -> None:
    recorder = Recorder(engine_dir, "frontend", "loop")
    expected = live_run(engine_dir)
    assert find_live_run(str(os.getpid())) == expected
    assert find_live_run(str(engine_dir)) == expected
    assert abs(expected.started - time.time()) < 60
    assert expected in live_runs()
    recorder.close()
    assert expected not in live_runs()


CHILD = """
import sys
from pathlib import Path
from vllm_lite.tracing.recorder import Recorder
recorder = Recorder(Path(sys.argv[1]), "engine-core", "main")
print("ready", flush=True)
sys.stdin.read()
"""


def test_and_by_any_process_of_its_engine(engine_dir: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(engine_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert find_live_run(str(child.pid)) == live_run(engine_dir)
        assert find_live_run(str(os.getpid())) == live_run(engine_dir)  # which has not mapped it
        child.communicate()


def test_a_run_whose_owner_is_gone_is_none(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    ControlPage.create(tmp_path, level=0, pid=gone.pid).close()
    for wanted in (str(tmp_path), str(gone.pid), str(tmp_path / "nothing")):
        with pytest.raises(VLLMValidationError, match=rf"^RUN must be the process id or .*; got '{wanted}'$"):
            find_live_run(wanted)


def test_a_level_for_a_while(engine_dir: Path) -> None:
    recorder = Recorder(engine_dir, "frontend", "loop")
    with switched(engine_dir, level=3, count=1):
        assert recorder.refresh() == 3
        assert (recorder.admit(), recorder.admit()) == (True, False)
    assert (recorder.refresh(), recorder.admit()) == (0, True)
    with pytest.raises(ZeroDivisionError), switched(engine_dir, level=2):
        _ = 1 / 0
    assert recorder.refresh() == 0
    recorder.close()


def test_a_limit_takes_no_request_from_a_run_that_is_recorded_anyway(engine_dir: Path) -> None:
    recorder = Recorder(engine_dir, "frontend", "loop")
    with switched(engine_dir, level=1), switched(engine_dir, level=3, count=1):
        assert recorder.refresh() == 3
        assert (recorder.admit(), recorder.admit()) == (True, True)
    recorder.close()


def write_step(front: SpoolWriter, core: SpoolWriter, number: int) -> None:
    t = 100 * number
    core.write([make.receive(req=number, internal_id=f"{number}_0")])
    core.write([make.schedule(number, t, {number: 1}), make.update(number, t + 10, t + 20, [(number, "stop")], num_bags=1)])
    core.write([make.send(number, t + 30)])
    front.write(
        [
            make.accept(number, t=t),
            make.post(number),
            make.sort(number, t + 40, [(number, 1, "p")]),
            make.close(number),
            make.call(t, t + 1, span_id=f"{number:016x}"),
        ]
    )


def test_a_tail_remembers_the_last_bags_and_requests(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "KEEP_BAGS", 5)
    monkeypatch.setattr(live, "KEEP_REQUESTS", 3)
    front, core = SpoolWriter(run_dir, "frontend", "loop"), SpoolWriter(run_dir, "engine-core", "main")
    tail = Tail(run_dir)
    sizes = []
    for number in range(1, 21):
        write_step(front, core, number)
        run = tail.poll()
        sizes.append((len(run.requests), len(run.steps), len(run.bags), len(run.calls)))
    assert sizes == [(min(n, 3), min(n, 5), min(n, 5), min(n, 3)) for n in range(1, 21)]
    assert [bag.sort.bag for bag in run.bags] == [16, 17, 18, 19, 20]
    assert [request.accept.req for request in run.requests] == [18, 19, 20]
    assert run.unclaimed == 0


def test_the_model_of_a_run_is_known_from_its_first_traced_request(run_dir: Path) -> None:
    run = LiveRun(run_dir, os.getpid(), 0, 0)
    assert run.model == ""
    SpoolWriter(run_dir, "frontend", "loop").write([make.accept(1)])
    assert run.model == "m"


def test_a_tail_starts_at_the_newest_segment(run_dir: Path) -> None:
    front = SpoolWriter(run_dir, "frontend", "loop", segment_bytes=20_000)
    core = SpoolWriter(run_dir, "engine-core", "main", segment_bytes=20_000)
    for number in range(1, 201):
        write_step(front, core, number)
    assert len(list(run_dir.glob("frontend-*.vlt"))) > 2
    run = Tail(run_dir).poll()
    assert 0 < len(run.requests) < 100
    assert run.requests[-1].accept.req == 200
