from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracing import make
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.spans import Kind, Span, run_spans
from vllm_lite.tracing.writers.perfetto import perfetto_events, write_perfetto_json

Events = list[dict[str, Any]]


def events_of(run: Run) -> Events:
    return list(perfetto_events(list(run_spans(run))))


def of_kind(events: Events, kind: str) -> Events:
    return [event for event in events if event["ph"] == kind]


def ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def slices_by_row(events: Events) -> list[list[tuple[int, int]]]:
    rows: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in of_kind(events, "X"):
        rows[event["pid"], event["tid"]].append((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])))
    return list(rows.values())


def test_parents_in_a_circle_are_drawn() -> None:
    """As a file of others' making may have them."""
    spans = [
        Span(make.core(), "a" * 32, "1" * 16, "2" * 16, "one", Kind.INTERNAL, 0, 10),
        Span(make.core(), "a" * 32, "2" * 16, "1" * 16, "two", Kind.INTERNAL, 0, 10),
    ]
    assert [event["name"] for event in of_kind(list(perfetto_events(spans)), "X")] == ["one", "two"]


def assert_nested(events: Events) -> None:
    """In each row, of two slices one holds the other or they do not meet."""
    for row in slices_by_row(events):
        open_until: list[int] = []
        for start, end in row:
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)
        assert [start for start, _ in row] == sorted(start for start, _ in row)


@pytest.mark.parametrize("name", ["canned", "dead"])
def test_slices_of_a_row_nest(request: pytest.FixtureRequest, name: str) -> None:
    run: Run = request.getfixturevalue(name)
    events = events_of(run)
    assert len(of_kind(events, "X")) == len(list(run_spans(run)))
    assert_nested(events)


CORE = make.core()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_so_do_whatever_spans_there_are(times: list[tuple[int, int]]) -> None:
    spans = [
        Span(CORE, "a" * 32, f"{n:016x}", None, "x", Kind.INTERNAL, start, start + length)
        for n, (start, length) in enumerate(times)
    ]
    events = list(perfetto_events(spans))
    assert len(of_kind(events, "X")) == len(spans)
    assert_nested(events)


def test_there_is_an_arrow_for_each_put(canned: Run) -> None:
    events = events_of(canned)
    starts, ends = ({event["id"]: event for event in of_kind(events, kind)} for kind in "sf")
    puts = sum(request.close.puts for request in canned.requests if request.close)
    assert starts.keys() == ends.keys()
    assert len(starts) == puts == 17
    assert all(ns(starts[number]["ts"]) <= ns(ends[number]["ts"]) for number in starts)
    rows = {(event["pid"], event["tid"]) for event in ends.values()}
    assert {names(events)[row][1].split()[0] for row in rows} == {"ann", "bob", "cleo"}


def names(events: Events) -> dict[tuple[int, int], tuple[str, str]]:
    """The group and name of each row."""
    groups = {event["pid"]: event["args"]["name"] for event in of_kind(events, "M") if event["name"] == "process_name"}
    return {
        (event["pid"], event["tid"]): (groups[event["pid"]], event["args"]["name"])
        for event in of_kind(events, "M")
        if event["name"] == "thread_name"
    }


def test_an_arrow_ends_within_its_request_and_starts_in_its_bag(canned: Run) -> None:
    events = events_of(canned)
    for kind, name in (("s", "output_processor.slice"), ("f", "text_completion canned-model")):
        holders = [event for event in of_kind(events, "X") if event["name"] == name]
        for arrow in of_kind(events, kind):
            assert any(
                (event["pid"], event["tid"]) == (arrow["pid"], arrow["tid"])
                and ns(event["ts"]) <= ns(arrow["ts"]) <= ns(event["ts"]) + ns(event["dur"])
                for event in holders
            )


def test_rows(canned: Run) -> None:
    rows = set(names(events_of(canned)).values())
    assert {group for group, _ in rows} == {
        "requests",
        "frontend 4001 on canned-host",
        "engine-core 4002 on canned-host",
        "worker 4002 on canned-host",
    }
    assert {name for group, name in rows if group.startswith("engine-core")} == {"main thread", "output thread", "steps"}


def test_counters_of_each_step(canned: Run) -> None:
    counters = of_kind(events_of(canned), "C")
    assert [event["args"]["running"] for event in counters if event["name"] == "running"] == [3, 3, 3, 3, 2, 1, 2, 1, 1]
    assert [event["args"]["waiting"] for event in counters if event["name"] == "waiting"] == [0, 0, 0, 0, 1, 1, 0, 0, 0]
    assert len([event for event in counters if event["name"] == "KV cache used"]) == 9


def test_what_happened_in_a_span_is_an_instant_in_its_row(canned: Run) -> None:
    instants = of_kind(events_of(canned), "i")
    assert {event["name"] for event in instants} >= {
        "collector.take",
        "gen_ai.token.generated",
        "letter.late",
        "request.preempted",
    }


def test_the_file(canned: Run, tmp_path: Path) -> None:
    assert write_perfetto_json(run_spans(canned), tmp_path / "run.json", {}) == 158
    written = json.loads((tmp_path / "run.json").read_text())
    assert written["displayTimeUnit"] == "ms"
    assert min(event["ts"] for event in written["traceEvents"] if "ts" in event) == 0
    assert list(perfetto_events([])) == []
