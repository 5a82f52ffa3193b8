from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.screens import printed, screen
from tests.tracing import make
from vllm_lite.entrypoints.cli import trace_live
from vllm_lite.entrypoints.cli.main import main
from vllm_lite.tracing import live
from vllm_lite.tracing.control_page import ControlPage
from vllm_lite.tracing.live import LiveRun
from vllm_lite.tracing.spool import SpoolWriter

Out = pytest.CaptureFixture[str]


class Engine:
    """A run of this process at level 0; between two polls it does what it is told, once each."""

    def __init__(self, run_dir: Path) -> None:
        self.page = ControlPage.create(run_dir, level=0, pid=os.getpid())
        self.front, self.core = SpoolWriter(run_dir, "frontend", "loop"), SpoolWriter(run_dir, "engine-core", "main")
        self.seen: list[tuple[int, int]] = []  # level and count at each poll
        self.turns: list[int | BaseException] = []

    def sleep(self, _: float) -> None:
        """What the command does between two polls."""
        self.seen.append((self.page.level, self.page.count))
        turn = self.turns.pop(0)
        if isinstance(turn, BaseException):
            raise turn
        self.serve(turn)

    def serve(self, number: int) -> None:
        """A request from its arrival to its end."""
        now = time.monotonic_ns()
        self.front.write([make.accept(number, t=now), make.close(number, t=now + 5_000_000, t_first_token=now + 2_000_000)])


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    engine = Engine(tmp_path)
    monkeypatch.setattr(trace_live, "sleep", engine.sleep)
    yield engine
    engine.page.close()  # else this process would seem to have one more run, until the page is garbage


def test_the_next_requests_are_told_and_then_the_level_is_as_it_was(engine: Engine, tmp_path: Path, capsys: Out) -> None:
    engine.serve(1)  # before
    engine.turns = [2, 3, 4]
    assert main(["trace", "attach", str(tmp_path), "--trace-count", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"ATTACHED  engine {os.getpid()}  level 3  for 2 requests, or until Ctrl-C")
    assert lines[1] == "model m"
    assert [line.split("  ")[0] for line in lines[2:4]] == ["r2", "r3"]
    assert lines[2] == "r2  5.0 ms  5 prompt tokens, 0 answer tokens, length; first after 2.0 ms"
    assert lines[-2:] == [f"vllm-lite trace show {tmp_path}", f"vllm-lite trace check {tmp_path}"]
    assert engine.seen == [(3, 2), (3, 2)]
    assert (engine.page.level, engine.page.count) == (0, -1)


def test_ctrl_c_ends_it(engine: Engine, tmp_path: Path, capsys: Out) -> None:
    engine.turns = [2, KeyboardInterrupt()]
    assert main(["trace", "attach", str(tmp_path), "--level", "1"]) == 130
    said = capsys.readouterr()
    assert "r2  " in said.out
    assert "has ended" not in said.out
    assert said.err == ""
    assert engine.seen == [(1, -1), (1, -1)]
    assert engine.page.level == 0


def test_the_engines_end_ends_it(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    monkeypatch.setattr(trace_live, "is_alive", lambda _: False)
    assert main(["trace", "attach", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["The engine has ended.", "No request began and ended meanwhile."]
    assert engine.seen == []


def test_a_request_that_the_engine_core_still_has_is_not_over(engine: Engine, tmp_path: Path, capsys: Out) -> None:
    engine.core.write([make.receive(req=1)])
    engine.turns = [1, KeyboardInterrupt()]
    engine.serve = lambda number: engine.front.write(  # type: ignore[method-assign]
        [make.accept(number, t=time.monotonic_ns()), make.post(number), make.close(number)]
    )
    assert main(["trace", "attach", str(tmp_path)]) == 130
    assert "No request began and ended meanwhile." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["1", "--level", "4"], "--level must be an integer >= 1 and <= 3; got 4"),
        (["1", "--trace-count", "0"], "--trace-count must be an integer >= 1; got 0"),
        (["/nowhere"], "RUN must be the process id or run directory of an engine that runs here ("),
    ],
)
def test_what_is_refused(argv: list[str], said: str, capsys: Out) -> None:
    assert main(["trace", "attach", *argv]) == 2
    text = capsys.readouterr().err
    assert text.startswith(f"vllm-lite: {said}")
    assert text.count("\n") == 1


@pytest.fixture
def page(tmp_path: Path) -> Iterator[ControlPage]:
    """A run of this process at level 0 that has one request and one bag."""
    page = ControlPage.create(tmp_path, level=0, pid=os.getpid())
    front = SpoolWriter(tmp_path, "frontend", "loop")
    front.write([make.accept(1), make.post(1), make.sort(0, 40, [(1, 1, "p")])])
    yield page
    page.close()


def test_one_frame_where_the_output_is_no_terminal(
    page: ControlPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    levels: list[int] = []
    monkeypatch.setattr(trace_live, "sleep", lambda _: levels.append(page.level))
    assert main(["trace", "top", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"TOP  engine {os.getpid()}  m  ---")
    assert lines[1].endswith("steps a second")
    assert lines[2].startswith("MAILROOM  1 bag  1 letter")
    assert (levels, page.level) == ([2], 0)


def test_a_level_that_is_higher_stays(page: ControlPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page.level = 3
    levels: list[int] = []
    monkeypatch.setattr(trace_live, "sleep", lambda _: levels.append(page.level))
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

    monkeypatch.setattr(trace_live, "new_console", lambda: console)
    monkeypatch.setattr(trace_live, "sleep", rest)
    monkeypatch.setattr(trace_live, "is_alive", lambda _: ends == "Ctrl-C" or len(rests) < 3)
    assert main(["trace", "top", str(tmp_path)]) == code
    assert len(rests) == 3
    assert min(rests) >= 0.1  # ten frames a second at most
    text = printed(console)
    assert text.count("TOP  engine") >= 4  # three frames, and the last one again on the ordinary screen
    assert text.index("\x1b[?1049h") < text.index("\x1b[?1049l") < text.rindex("TOP  engine")
    assert text.endswith("The engine has ended.\n") == (ends == "engine")
    assert page.level == 0


@pytest.mark.parametrize(("command", "code", "shown"), [("attach", 130, "model m"), ("top", 0, "MAILROOM  1 bag")])
def test_the_only_engine_needs_no_name(
    command: str, code: int, shown: str, page: ControlPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    def rest(_: float) -> None:
        if command == "attach":
            raise KeyboardInterrupt

    monkeypatch.setattr(trace_live, "sleep", rest)
    monkeypatch.setattr(live, "live_runs", lambda: [LiveRun(tmp_path, os.getpid(), 0, 0)])
    assert main(["trace", command]) == code
    assert shown in capsys.readouterr().out


@pytest.mark.parametrize("command", ["attach", "top"])
@pytest.mark.parametrize(
    ("pids", "told"),
    [
        ([], "no engine runs here; `vllm-lite trace run` in another terminal starts one"),
        ([11, 12], "RUN must be the process id or run directory of an engine that runs here (11, 12)"),
        ([11, 11], "RUN must be the process id or run directory of an engine that runs here (/r, /r)"),
    ],
)
def test_none_or_several_is_refused(
    command: str, pids: list[int], told: str, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    for module in (live, trace_live):
        monkeypatch.setattr(module, "live_runs", lambda: [LiveRun(Path("/r"), pid, 0, 0) for pid in pids])
    assert main(["trace", command]) == 2
    said = capsys.readouterr()
    assert said.err == f"vllm-lite: {told}\n"
    assert len(said.out.splitlines()) == (len(pids) + 2 if pids else 0)


def test_those_that_run_are_listed_where_one_must_be_named(
    page: ControlPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    traced, quiet = LiveRun(tmp_path, 4711, 2, 1_767_268_800), LiveRun(tmp_path / "no", 12, 0, 1_767_268_860)
    for module in (live, trace_live):
        monkeypatch.setattr(module, "live_runs", lambda: [traced, quiet])
    monkeypatch.setattr(trace_live, "localtime", time.gmtime)
    assert main(["trace", "attach"]) == 2
    assert capsys.readouterr().out.splitlines()[1:] == [
        "      pid  started       model                  run directory",
        f"     4711  01 Jan 12:00  m                      {tmp_path}",
        f"       12  01 Jan 12:01  not traced yet         {tmp_path}/no",
    ]


def test_a_model_s_name_is_listed_as_one_line_that_no_terminal_obeys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    runs = [LiveRun(tmp_path / name, pid, 1, 0) for pid, name in enumerate(["a", "b"])]
    monkeypatch.setattr(LiveRun, "model", "m\x1b[31m\n")
    for module in (live, trace_live):
        monkeypatch.setattr(module, "live_runs", lambda: runs)
    assert main(["trace", "attach"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "m\\x1b[31m\\n " in lines[2]
