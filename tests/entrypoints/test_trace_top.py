from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.console.screens import printed, screen
from tests.tracing import make
from vllm_lite.entrypoints.cli import trace_top
from vllm_lite.entrypoints.cli.main import main
from vllm_lite.tracing.control_page import ControlPage
from vllm_lite.tracing.live import LiveRun
from vllm_lite.tracing.spool import SpoolWriter

Out = pytest.CaptureFixture[str]


@pytest.fixture
def page(tmp_path: Path) -> ControlPage:
    """A run of this process at level 0 that has one request and one bag."""
    page = ControlPage.create(tmp_path, level=0, pid=os.getpid())
    front = SpoolWriter(tmp_path, "frontend", "loop")
    front.write([make.accept(1), make.post(1), make.sort(0, 40, [(1, 1, "p")])])
    return page


def test_one_frame_where_the_output_is_no_terminal(
    page: ControlPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    levels: list[int] = []
    monkeypatch.setattr(trace_top, "sleep", lambda _: levels.append(page.level))
    assert main(["trace", "top", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"TOP  engine {os.getpid()}  ---")
    assert lines[1].endswith("steps a second")
    assert lines[2].startswith("MAILROOM  1 bag  1 letter")
    assert (levels, page.level) == ([2], 0)


def test_a_level_that_is_higher_stays(page: ControlPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page.level = 3
    levels: list[int] = []
    monkeypatch.setattr(trace_top, "sleep", lambda _: levels.append(page.level))
    assert main(["trace", "top", str(tmp_path)]) == 0
    assert (levels, page.level) == ([3], 3)


@pytest.mark.parametrize(("ends", "code"), [("engine", 0), ("Ctrl-C", 130)])
def test_frames_on_a_terminal_until_the_end(
    page: ControlPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, code: int
) -> None:
    console, rests = screen(80, terminal=True), list[float]()

    def rest(seconds: float) -> None:
        rests.append(seconds)
        if ends == "Ctrl-C" and len(rests) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(trace_top, "new_console", lambda: console)
    monkeypatch.setattr(trace_top, "sleep", rest)
    monkeypatch.setattr(trace_top, "is_alive", lambda _: ends == "Ctrl-C" or len(rests) < 3)
    assert main(["trace", "top", str(tmp_path)]) == code
    assert len(rests) == 3
    assert min(rests) >= 0.1  # ten frames a second at most
    text = printed(console)
    assert text.count("TOP  engine") >= 4  # three frames, and the last one again on the ordinary screen
    assert text.index("\x1b[?1049h") < text.index("\x1b[?1049l") < text.rindex("TOP  engine")
    assert page.level == 0


def test_the_only_engine_needs_no_name(page: ControlPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    monkeypatch.setattr(trace_top, "sleep", lambda _: None)
    monkeypatch.setattr(trace_top, "live_runs", lambda: [LiveRun(tmp_path, os.getpid(), 0, -1)])
    assert main(["trace", "top"]) == 0
    assert "MAILROOM  1 bag" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pids", "known"),
    [([], "none does; `vllm-lite trace run` in another terminal starts one"), ([11, 12], "11, 12"), ([11, 11], "/r, /r")],
)
def test_none_or_several_is_refused(pids: list[int], known: str, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    monkeypatch.setattr(trace_top, "live_runs", lambda: [LiveRun(Path("/r"), pid, 0, -1) for pid in pids])
    assert main(["trace", "top"]) == 2
    assert capsys.readouterr().err == (
        f"vllm-lite: RUN must be the process id or run directory of an engine that runs here ({known})\n"
    )
