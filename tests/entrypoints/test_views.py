from __future__ import annotations

import pytest

from tests.console.screens import printed, screen
from tests.console.story import Caller, Teller, crowd, short_story
from vllm_lite.console.demo import canned_run
from vllm_lite.entrypoints.cli import views
from vllm_lite.tracing.journey import Run


def titles(run: Run, *names: str, everything: bool = False) -> list[str]:
    console = screen(80)
    views.show(console, run, names or views.VIEWS, everything=everything)
    lines = printed(console).splitlines()
    assert all(lines[i - 1] == "" for i, line in enumerate(lines) if line.endswith("-----"))
    return [line.split("  ")[0] for line in lines if line.endswith("-----")]


def test_a_single_request_needs_no_axis_of_its_own() -> None:
    assert titles(Teller([Caller()]).tell()) == ["MAILROOM", "REQUEST A", "TOTALS"]


def test_of_many_requests_those_that_differ_have_waterfalls() -> None:
    run = crowd()
    first_stapled = next(i for i, r in enumerate(run.requests) if r.close is not None and r.close.staples)
    first_aborted = next(i for i, r in enumerate(run.requests) if r.aborts)
    assert (first_stapled, first_aborted) == (3, 5)
    assert titles(run, "request") == ["REQUESTS", "REQUEST A", "REQUEST D", "REQUEST F"]
    assert len(titles(run, "request", everything=True)) == 41


@pytest.mark.parametrize("everything", [False, True])
def test_it_is_said_how_to_see_the_other_waterfalls(everything: bool) -> None:
    console = screen(80)
    views.show(console, crowd(), ("request",), everything=everything)
    assert (views.OTHERS in printed(console)) is not everything
    views.show(console := screen(80), short_story(), ("request",))
    assert views.OTHERS not in printed(console)


def test_a_preempted_request_differs_too() -> None:
    run = canned_run()
    run.requests.insert(0, Teller([Caller()]).tell().requests[0])
    assert titles(run, "request") == ["REQUESTS", "REQUEST A", "REQUEST D", "REQUEST C"]


@pytest.mark.parametrize("everything", [False, True])
def test_long_runs_lose_their_middle_unless_told_otherwise(everything: bool) -> None:
    console = screen(80)
    views.show(console, Teller([Caller(answer=60)]).tell(), ("mailroom",), everything=everything)
    assert ("alike" in printed(console)) is not everything
    assert (views.FOLDED in printed(console)) is not everything


def test_a_part_of_a_run_holds_what_its_requests_took_part_in() -> None:
    run = short_story()
    part = views.part(run, {"req-2"})
    assert [request.accept.external_id for request in part.requests] == ["req-2"]
    assert [bag.sort.bag for bag in part.bags] == [0, 1, 2, 3, 4, 5]
    assert part.steps == run.steps[:6]
    assert len(run.requests) == 3
