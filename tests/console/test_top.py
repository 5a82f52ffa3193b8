from __future__ import annotations

import dataclasses

import pytest
from rich.console import RenderableType

from tests.console.screens import Golden, lines, printed, screen
from tests.console.story import Caller, Teller, crowd, long_story, short_story
from vllm_lite.console import top as console_top
from vllm_lite.console.top import Top
from vllm_lite.tracing.journey import Process, Run


def frame(run: Run) -> Top:
    """The run as it was when its last bag came."""
    top = Top("engine 4711")
    top.look(run, run.bags[-1].sort.t_received)
    return top


def test_golden(golden: Golden) -> None:
    golden("top", frame(long_story()))
    golden("top-crowd", frame(crowd()))


@pytest.mark.parametrize("height", [15, 24, 50])
@pytest.mark.parametrize("width", [80, 120])
def test_never_higher_than_the_screen(height: int, width: int) -> None:
    console = screen(width, terminal=True, height=height)
    view: RenderableType = frame(crowd())
    console.print(view)
    assert len(printed(console).splitlines()) <= height


def test_rates_are_those_of_the_last_two_seconds() -> None:
    run = short_story()
    top = frame(run)
    assert lines(top)[1] == "12 tokens and 4 steps a second, 1 running, 0 waiting, KV cache 1.1%"
    top.look(run, run.bags[-1].sort.t_received + 10_000_000_000)
    assert lines(top)[1] == "0 tokens and 0 steps a second"


def test_requests_of_all_engine_cores_are_counted() -> None:
    run = short_story()
    first, second = run.steps[3], run.steps[-1]
    first.process = Process("engine-core", 102, "host", "boot")
    assert (first.schedule.num_running, second.schedule.num_running) == (3, 1)
    assert lines(frame(run))[1].endswith(", 4 running, 0 waiting, KV cache 3.3%")


def test_before_anything_came() -> None:
    run = short_story()
    top = Top("engine 4711")
    top.look(dataclasses.replace(run, requests=[], steps=[], bags=[]), 0)
    assert lines(top)[1:] == [
        "0 tokens and 0 steps a second",
        lines(top)[2],
        "No bag was sorted in this run.",
    ]


def test_a_request_keeps_its_letter_when_older_ones_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_top, "BAGS", 3)
    run = Teller([Caller(answer=2), Caller(answer=30)]).tell()
    top = Top("engine 4711")
    top.look(run, 0)
    before = lines(top)
    top.look(dataclasses.replace(run, requests=run.requests[1:]), 0)
    assert lines(top) == before
    assert before[4].split()[-1] == "B"
