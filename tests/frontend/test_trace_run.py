"""Whose the run directory is, and that an exporter starts with it and ends after it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from vllm_lite.config import ObservabilityConfig
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.frontend.trace_run import TraceRun
from vllm_lite.tracing.control_page import CONTROL_FILE, ControlPage

DEAD_END = "http://127.0.0.1:1"  # nobody listens on port 1


def test_a_run_of_its_own_goes_when_nothing_was_recorded() -> None:
    run = TraceRun(ObservabilityConfig(trace_level=2))
    page = ControlPage.open(run.path)
    assert (page.level, page.pid) == (2, os.getpid())
    page.close()
    run.close()
    run.close()
    assert not run.path.exists()


def test_records_stay(tmp_path: Path) -> None:
    run = TraceRun(ObservabilityConfig(trace_dir=str(tmp_path / "run")))
    (run.path / "frontend-1-loop.vlt").write_bytes(b"x")
    run.close()
    assert sorted(path.name for path in run.path.iterdir()) == [CONTROL_FILE, "frontend-1-loop.vlt"]


def test_a_second_engine_has_a_run_of_its_own(tmp_path: Path) -> None:
    first, second = (TraceRun(ObservabilityConfig(trace_dir=str(tmp_path / "run"), trace_level=level)) for level in (1, 3))
    assert (first.path, second.path) == (tmp_path / "run", tmp_path / "run.1")
    second.close()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    first.close()


def test_a_run_whose_owner_is_dead_is_not_continued(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / "run").mkdir()
    ControlPage.create(tmp_path / "run", level=3, pid=gone.pid).close()
    run = TraceRun(ObservabilityConfig(trace_dir=str(tmp_path / "run")))
    assert run.path == tmp_path / "run.1"
    run.close()


def test_an_exporter_lives_as_long_as_the_run() -> None:
    run = TraceRun(ObservabilityConfig(otlp_traces_endpoint=DEAD_END))
    (exporter,) = psutil.Process().children()
    assert exporter.cmdline()[1:4] == ["-m", "vllm_lite.tracing.exporter", str(run.path)]
    assert os.getsid(exporter.pid) == exporter.pid  # Ctrl-C in this terminal spares it
    run.close()
    assert psutil.Process().children() == []


def test_a_bad_endpoint_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(VLLMValidationError):
        TraceRun(ObservabilityConfig(otlp_traces_endpoint="nonsense://", trace_dir=str(tmp_path / "run")))
    assert psutil.Process().children() == []
    assert not (tmp_path / "run").exists()


def test_a_home_that_cannot_be_written_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    run = TraceRun(ObservabilityConfig())
    assert run.path.name.startswith("vllm-lite-run-")
    run.close()
    assert not run.path.exists()
    for config in (ObservabilityConfig(trace_level=1), ObservabilityConfig(trace_dir=str(tmp_path / "file"))):
        with pytest.raises(VLLMValidationError, match="trace_dir must be a folder that can be made and written"):
            TraceRun(config)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [("VLLM_LITE_TRACE_LEVEL", "1", "trace_dir"), ("VLLM_LITE_TRACE_DIR", "/proc/run", "VLLM_LITE_TRACE_DIR")],
)
def test_a_run_that_the_environment_asks_for_is_not_put_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv(name, value)
    with pytest.raises(VLLMValidationError, match=f"^{told} must be a folder that can be made and written"):
        TraceRun(ObservabilityConfig())
