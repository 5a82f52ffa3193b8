"""The scheduler's benchmark runs to its end, and its child gives every round's figures."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks import scheduler
from tests.architecture.source import ROOT


def test_a_line_for_each_pool_and_each_way_to_plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(scheduler, "WARM_UP_STEPS", 30)
    monkeypatch.setattr(sys, "argv", ["scheduler.py", "--running", "4", "--steps", "3", "--rounds", "2"])
    assert scheduler.main() == 0
    _, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[:3] for row in rows] == [
        ["roomy,", "now", "vllm_lite"],
        ["roomy,", "ahead", "vllm_lite"],
        ["tight,", "now", "vllm_lite"],
        ["tight,", "ahead", "vllm_lite"],
    ]


def test_a_tight_pool_preempts() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "scheduler_child.py"), "vllm_lite", "none", "8", "tight", "now"]
    done = subprocess.run(command, input="400\n", capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["preemptions"] > 0
    assert 0 < found["hit_rate"] < 1
    assert 4 < found["requests"] < 8
    assert found["microseconds"] > 0


def test_a_child_that_ends_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["scheduler.py", "--running", "0", "--steps", "1"])  # nothing to run: no figures
    with pytest.raises(SystemExit, match=r"no figures came; run it by hand: echo 300 \| .*scheduler_child.py vllm_lite none 0"):
        scheduler.main()
