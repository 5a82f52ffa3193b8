from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.worker.profiler import WorkerProfiler


def test_a_profile_is_a_file_that_holds_what_ran(tmp_path: Path) -> None:
    profiler = WorkerProfiler(str(tmp_path), rank=1)
    for prefix, name in [(None, "profile-rank1-1.pt.trace.json"), ("warm-up", "warm-up-rank1-2.pt.trace.json")]:
        profiler.start(prefix)
        torch.ones(3, 4) @ torch.ones(4, 5)
        assert profiler.stop() == str(tmp_path / name)
        events = json.loads((tmp_path / name).read_text())["traceEvents"]
        assert any(event["name"] == "aten::matmul" for event in events)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="there is none"):
        WorkerProfiler(None, 0).start(None)
    profiler = WorkerProfiler(str(tmp_path), 0)
    with pytest.raises(RuntimeError, match="no profile"):
        profiler.stop()
    with pytest.raises(VLLMValidationError, match="profile_prefix"):
        profiler.start("../elsewhere")
    profiler.start(None)
    with pytest.raises(RuntimeError, match="already"):
        profiler.start(None)
    profiler.stop()


@pytest.mark.parametrize(("delay", "most", "seen"), [(0, 2, [1, 2]), (2, 0, [3, 4, 5]), (1, 3, [2, 3, 4])])
def test_a_profile_of_chosen_steps(tmp_path: Path, delay: int, most: int, seen: list[int]) -> None:
    profiler = WorkerProfiler(str(tmp_path), 0)
    for expected in ("profile-rank0-1.pt.trace.json", "profile-rank0-2.pt.trace.json"):
        profiler.start(None, delay, most)
        for step in range(1, 6):
            profiler.step()
            with torch.profiler.record_function(f"step {step}"):
                torch.ones(1)
        path = tmp_path / expected
        assert path.exists() == bool(most)
        assert profiler.stop() == str(path)
        names = {event["name"] for event in json.loads(path.read_text())["traceEvents"]}
        assert sorted(name for name in names if name.startswith("step ")) == [f"step {step}" for step in seen]
        with pytest.raises(RuntimeError, match="no profile"):
            profiler.stop()


def test_a_profile_that_has_not_begun_can_be_given_up(tmp_path: Path) -> None:
    profiler = WorkerProfiler(str(tmp_path), 0)
    profiler.start(None, 3)
    profiler.step()
    with pytest.raises(RuntimeError, match="already"):
        profiler.start(None)
    with pytest.raises(RuntimeError, match="the profile was ended before its delay was over"):
        profiler.stop()
    profiler.start(None)
    profiler.stop()
