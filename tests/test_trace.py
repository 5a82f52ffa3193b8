"""`vllm_lite.trace`: canned runs, and a real engine with the toy executor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vllm_lite
from tests.frontend.helpers import toy_args
from vllm_lite import AsyncLLM, SamplingParams
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.trace import TracedRun, load, record
from vllm_lite.tracing.canned import write_canned_run
from vllm_lite.tracing.control_page import ControlPage
from vllm_lite.tracing.live import find_live_run


@pytest.fixture
def canned(tmp_path: Path) -> TracedRun:
    return load(write_canned_run(tmp_path / "run"))


def test_requests_steps_and_bags_as_plain_rows(canned: TracedRun) -> None:
    ann, bob, cleo = canned.requests
    assert [(row.id, row.outcome, row.finish_reason, row.output_tokens) for row in canned.requests] == [
        ("ann", "finished", "length", 7),
        ("bob", "finished", "stop", 4),
        ("cleo", "finished", "stop", 6),
    ]
    assert (cleo.puts, cleo.staples, cleo.takes, cleo.left, cleo.preemptions, bob.late) == (6, 4, 2, 0, 1, 1)
    assert ann.steps == 7
    assert ann.first_token_s is not None
    assert ann.total_s is not None
    assert 0 < ann.first_token_s < ann.total_s
    assert [step.index for step in canned.steps] == [bag.step for bag in canned.bags] == list(range(9))
    assert [(step.requests, step.tokens, step.preempted) for step in canned.steps[3:5]] == [(3, 3, 0), (2, 2, 1)]
    assert [(bag.letters, bag.put, bag.stapled, bag.late) for bag in canned.bags[3:5]] == [(3, 2, 1, 0), (2, 1, 0, 1)]
    assert canned.steps[0].start_s > 0
    assert canned.requests[0].journey is canned.journey.requests[0]
    assert repr(canned).endswith(": 3 requests, 9 steps, 9 bags>")


def test_what_was_never_reached_is_none(tmp_path: Path) -> None:
    dead = load(write_canned_run(tmp_path / "run", engine_dies=True))
    assert [row.outcome for row in dead.requests] == ["engine_dead", "finished", "engine_dead"]
    assert dead.requests[0].finish_reason is None


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path)


def test_a_notebook_shows_mailroom_and_waterfall(canned: TracedRun) -> None:
    html = canned._repr_html_()
    assert html.startswith("<pre")
    assert "MAILROOM" in html
    assert "REQUEST A" in html
    assert "<html" not in html


def test_in_a_notebook_it_is_shown_once(
    canned: TracedRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = canned._repr_html_()
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert canned._repr_html_() == outside
    assert capsys.readouterr().out == ""


def test_frames_are_refused_where_there_is_no_pandas(canned: TracedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(VLLMValidationError, match="frames need pandas, which is not installed"):
        canned.frames()


def test_frames_have_a_column_for_each_field(canned: TracedRun) -> None:
    frames: dict[str, Any] = canned.frames()
    assert {name: len(frame) for name, frame in frames.items()} == {"requests": 3, "steps": 9, "bags": 9}
    assert frames["requests"].set_index("id")["late"].to_dict() == {"ann": 0, "bob": 1, "cleo": 0}
    assert frames["requests"]["output_tokens"].sum() == sum(request.output_tokens for request in canned.requests)
    assert "journey" not in frames["steps"].columns


async def answer(engine: AsyncLLM, request_id: str) -> None:
    async for _ in engine.generate("hello", SamplingParams(max_tokens=5, temperature=0, ignore_eos=True), request_id):
        pass


async def test_record_around_an_engine_of_its_own(tiny_model_path: Path, tmp_path: Path) -> None:
    with vllm_lite.trace.record(out=tmp_path / "run", level=2) as run:
        engine = AsyncLLM.from_engine_args(toy_args(tiny_model_path))
        await answer(engine, "a")
        engine.shutdown()
    assert [(row.id, row.output_tokens, row.puts) for row in run.requests] == [("a", 5, 5)]
    assert run.journey.unclaimed == 0
    assert "VLLM_LITE_TRACE_LEVEL" not in os.environ


async def test_record_ends_with_its_block(tiny_model_path: Path) -> None:
    with record() as run:
        engine = AsyncLLM.from_engine_args(toy_args(tiny_model_path))
        await answer(engine, "inside")
    await answer(engine, "outside")
    engine.shutdown()
    assert [row.id for row in run.requests] == ["inside"]
    assert [row.id for row in load(run.path).requests] == ["inside"]


async def test_record_tells_of_every_engine_that_its_block_builds(tiny_model_path: Path, tmp_path: Path) -> None:
    write_canned_run(tmp_path / "run.7")  # of another day
    with record(out=tmp_path / "run") as run:
        engines = [AsyncLLM.from_engine_args(toy_args(tiny_model_path)) for _ in range(2)]
        await answer(engines[1], "of the second")
        await answer(engines[0], "of the first")
        engines[0].shutdown()
    await answer(engines[1], "outside")
    engines[1].shutdown()
    assert [row.id for row in run.requests] == ["of the second", "of the first"]
    assert (len(run.steps), len(run.bags)) == (10, 10)
    assert run.journey.unclaimed == 0


async def test_record_around_an_engine_that_runs_already(tiny_model_path: Path) -> None:
    engine = AsyncLLM.from_engine_args(toy_args(tiny_model_path))
    await answer(engine, "before")
    for name in ("first", "second"):
        with record(engine, level=2) as run:
            await answer(engine, name)
        await answer(engine, "between")
        assert [row.id for row in run.requests] == [name]
    assert find_live_run(str(os.getpid())).level == 0
    engine.shutdown()


async def test_what_comes_after_its_block_does_not_count(tiny_model_path: Path) -> None:
    """Though it is recorded, because somebody else wants it to be."""
    engine = AsyncLLM.from_engine_args(toy_args(tiny_model_path, trace_level=1))
    await answer(engine, "before")
    with record(engine) as run:
        await answer(engine, "within")
    await answer(engine, "after")
    assert [row.id for row in run.requests] == ["within"]
    assert (len(run.steps), len(run.bags)) == (5, 5)
    engine.shutdown()


async def test_an_engine_that_is_gone_is_refused(tiny_model_path: Path) -> None:
    engine = AsyncLLM.from_engine_args(toy_args(tiny_model_path))
    engine.shutdown()
    with pytest.raises(VLLMValidationError, match="use an AsyncLLM or LLM that runs"), record(engine):
        pass


@pytest.mark.parametrize("level", [0, 4, "3"])
def test_a_level_that_is_none_is_refused(level: Any) -> None:
    with pytest.raises(VLLMValidationError, match="level must be an integer >= 1 and <= 3"), record(level=level):
        pass


def test_a_folder_that_holds_a_run_is_refused(canned: TracedRun) -> None:
    with pytest.raises(VLLMValidationError, match="out must be a folder that holds no run yet"), record(out=canned.path):
        pass


def test_a_folder_of_its_own_goes_with_the_process() -> None:
    code = "from vllm_lite.trace import record\nwith record() as run: print(run.path.parent, run.path.parent.is_dir())"
    path, there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert there == "True"
    assert not Path(path).exists()


def test_something_that_is_no_engine_is_refused() -> None:
    with pytest.raises(VLLMValidationError, match="engine is no engine"), record(object()):
        pass


def test_nothing_happened(tmp_path: Path) -> None:
    with record(out=tmp_path / "run") as run:
        pass
    with pytest.raises(FileNotFoundError):
        _ = run.requests
    assert not (tmp_path / "run").exists()
    ControlPage.create(tmp_path, 3).close()
