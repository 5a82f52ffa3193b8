from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.control_page import CONTROL_FILE, ControlPage
from vllm_lite.tracing.run_dir import close_run_dir, create_run_dir, remove_if_empty


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("VLLM_LITE_TRACE_DIR", raising=False)
    return tmp_path / "state"


def test_the_usual_place(state_home: Path) -> None:
    run_dir = create_run_dir(2)
    assert run_dir.parent == state_home / "vllm-lite" / "runs"
    assert run_dir.name.endswith(f"-{os.getpid()}")
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700
    page = ControlPage.open(run_dir)
    assert (page.level, page.pid) == (2, os.getpid())
    page.close()


def test_an_explicit_place_comes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LITE_TRACE_DIR", str(tmp_path / "env"))
    assert create_run_dir(0) == tmp_path / "env"
    assert create_run_dir(0, str(tmp_path / "mine")) == tmp_path / "mine"


@pytest.mark.parametrize(("level", "given", "expected"), [(0, "2", 2), (1, "3", 1), (0, "0", 0)])
def test_the_environments_level_is_for_engines_that_were_given_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int, given: str, expected: int
) -> None:
    monkeypatch.setenv("VLLM_LITE_TRACE_LEVEL", given)
    page = ControlPage.open(create_run_dir(level, str(tmp_path / "run")))
    assert page.level == expected
    page.close()


def test_a_level_that_is_none_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LITE_TRACE_LEVEL", "all")
    with pytest.raises(VLLMValidationError, match="VLLM_LITE_TRACE_LEVEL is 'all'"):
        create_run_dir(0, str(tmp_path / "run"))


def test_two_engines_never_share_a_directory(tmp_path: Path) -> None:
    names = [create_run_dir(0, str(tmp_path / "run")).name for _ in range(3)]
    assert names == ["run", "run.1", "run.2"]


def test_closing_removes_what_nothing_was_recorded_in() -> None:
    run_dir = create_run_dir(1)
    close_run_dir(run_dir)
    assert not run_dir.exists()


def test_closing_leaves_records_alone() -> None:
    run_dir = create_run_dir(1)
    (run_dir / "frontend-1-loop.vlt").write_bytes(b"x")
    close_run_dir(run_dir)
    assert (run_dir / CONTROL_FILE).exists()
    assert not remove_if_empty(run_dir)


def test_closing_clears_up_after_owners_that_died(state_home: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    runs = state_home / "vllm-lite" / "runs"
    stale, used, alive, strange = (runs / name for name in ("stale", "used", "alive", "strange"))
    for folder, pid in ((stale, gone.pid), (used, gone.pid), (alive, os.getpid())):
        folder.mkdir(parents=True)
        ControlPage.create(folder, level=0, pid=pid).close()
    (used / "frontend-1-loop.vlt").write_bytes(b"x")
    strange.mkdir()
    close_run_dir(create_run_dir(0))
    assert sorted(path.name for path in runs.iterdir()) == ["alive", "strange", "used"]


def test_closing_elsewhere_touches_nothing_else(tmp_path: Path) -> None:
    neighbour = tmp_path / "neighbour"
    neighbour.mkdir()
    ControlPage.create(neighbour, level=0, pid=0).close()
    close_run_dir(create_run_dir(0, str(tmp_path / "mine")))
    assert neighbour.exists()
    assert not (tmp_path / "mine").exists()
