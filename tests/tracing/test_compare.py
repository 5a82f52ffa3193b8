from __future__ import annotations

import pytest

from tests.tracing import make
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.compare import Figures, Pair, compare, facts, quantile
from vllm_lite.tracing.journey import Run


def run_of(execute: int, **close: object) -> Run:
    """One request, one step that takes `execute`."""
    front, core = make.front(), make.core()
    return make.run(
        (front, make.accept()),
        (front, make.post()),
        (core, make.receive()),
        (core, make.schedule(0, 50, {1: 5}, prefills=[1])),
        (core, make.execute(0, 60, 60 + execute)),
        (front, make.close(t=1000, **close)),
    )


def test_station_by_station() -> None:
    found = compare(run_of(100), run_of(150))
    stops = {pair.name: (pair, a, b) for pair, a, b in found.stops}
    assert list(stops) == ["S3", "wire in", "S4", "queued", "prefill", "S5", "S6"]
    pair, a, b = stops["S6"]
    assert pair == Pair("S6", 100.0, 150.0)
    assert pair.ratio == 1.5
    assert (a, b) == (Figures(1, 100.0, 100.0, 100.0, 100), Figures(1, 150.0, 150.0, 150.0, 150))


def test_a_stop_that_only_one_run_came_to() -> None:
    front = make.front()
    other = make.run((front, make.accept()), (front, rec.Tokenise(1, 3, 8, 5)))
    found = {pair.name: pair for pair, _, _ in compare(run_of(100), other).stops}
    assert (found["S6"].a, found["S6"].b, found["S6"].ratio) == (100.0, None, None)
    assert (found["S2"].a, found["S2"].b, found["S2"].ratio) == (None, 5.0, None)


def test_facts() -> None:
    run = run_of(100, num_output_tokens=10, staples=2, t_first_token=400, num_cached_tokens=3)
    assert facts(run) == {
        "requests": 1,
        "finished": 1,
        "prompt tokens": 5,
        "cached tokens": 3,
        "answer tokens": 10,
        "seconds": 1e-6,
        "answer tokens a second": 1e7,
        "first token, p50 s": 4e-7,
        "first token, p99 s": 4e-7,
        "steps": 1,
        "requests in a step": 1,
        "preemptions": 0,
        "bags": 0,
        "staples": 2,
        "aborts": 0,
        "late letters": 0,
    }


def test_a_run_of_nothing_has_no_rates() -> None:
    assert {name for name, value in facts(make.run()).items() if value is None} == {
        "answer tokens a second",
        "first token, p50 s",
        "first token, p99 s",
        "requests in a step",
    }


def test_a_run_does_not_differ_from_itself(canned: Run) -> None:
    found = compare(canned, canned)
    assert {pair.ratio for pair, _, _ in found.stops} <= {1.0, None}
    assert {pair.ratio for pair in found.facts} <= {1.0, None}


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 3), (0.99, 4), (1.0, 4)])
def test_quantiles_are_values_that_are_there(share: float, value: float) -> None:
    assert quantile([1, 2, 3, 4], share) == value
