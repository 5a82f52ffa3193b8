"""The quick histogram says what prometheus_client's own says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from vllm_lite.metrics.loggers.tally import Tally

BUCKETS = (0.5, 1.0, 2.5, 10.0)


def lines(registry: CollectorRegistry) -> list[bytes]:
    return [line for line in generate_latest(registry).splitlines() if b"_created" not in line]


@given(st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, 2.5, 3.0, 10.0, 64.0]))))
def test_it_equals_one_by_one(bags: list[list[float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tally = Tally("a:name", "text", ("engine",), [("0",), ("1",)], registry=ours, buckets=BUCKETS)
    histogram = Histogram("a:name", "text", ("engine",), registry=theirs, buckets=BUCKETS)
    histogram.labels("0"), histogram.labels("1")
    for bag in bags:
        tally.labels("1").observe_all(bag)
        for value in bag:
            histogram.labels("1").observe(value)
    assert lines(ours) == lines(theirs)
