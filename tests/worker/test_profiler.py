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
