from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.tracing import make
from tests.tracing.official import official_request
from tests.tracing.receiver import attributes
from vllm_lite.tracing.exporter.otlp import Encoder
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.spans import Event, Kind, Link, Span, run_spans

CORE = make.core()


def encoded(spans: list[Span], environ: dict[str, str] | None = None) -> ExportTraceServiceRequest:
    return ExportTraceServiceRequest.FromString(Encoder(environ or {}).request(spans))


def assert_same(spans: list[Span]) -> None:
    """Both requests, resource for resource: the SDK sorts by resource too, in the order in which they first come."""
    ours, theirs = encoded(spans), official_request(spans, {})
    assert len(ours.resource_spans) == len(theirs.resource_spans)
    for own, official in zip(ours.resource_spans, theirs.resource_spans, strict=True):
        assert own == official


@pytest.mark.parametrize("name", ["canned", "dead"])
def test_it_says_what_the_official_encoder_says(request: pytest.FixtureRequest, name: str) -> None:
    run: Run = request.getfixturevalue(name)
    spans = list(run_spans(run))
    assert_same(spans)
    random.Random(0).shuffle(spans)
    assert_same(spans)


VALUES = st.one_of(
    st.text(max_size=200),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.lists(st.text(max_size=5), min_size=1, max_size=3),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
)
ATTRIBUTES = st.dictionaries(st.text(min_size=1, max_size=20), VALUES, max_size=4)
TIMES = st.integers(0, (1 << 64) - 1)
SPANS = st.builds(
    Span,
    process=st.just(CORE),
    trace_id=st.just("a" * 32),
    span_id=st.integers(1, (1 << 64) - 1).map(lambda n: f"{n:016x}"),
    parent_span_id=st.none() | st.just("c" * 16),
    name=st.text(min_size=1, max_size=300),
    kind=st.sampled_from(Kind),
    start=TIMES,
    end=TIMES,
    attributes=ATTRIBUTES,
    events=st.lists(st.builds(Event, st.text(max_size=200), TIMES, ATTRIBUTES), max_size=3),
    links=st.lists(st.builds(Link, st.just("d" * 32), st.just("e" * 16), ATTRIBUTES), max_size=3),
    error=st.none() | st.text(max_size=5),
    tracestate=st.none() | st.just("vendor=1,other=2"),
    remote_parent=st.booleans(),
    dropped_attributes=st.integers(0, 3),
    dropped_events=st.integers(0, 3),
    dropped_links=st.integers(0, 3),
)


@given(st.lists(SPANS, max_size=3))
def test_so_it_does_for_whatever_a_span_may_hold(spans: list[Span]) -> None:
    assert_same(spans)


def test_equal_numbers_of_different_types_stay_what_they_are() -> None:
    numbers = [1, True, 1.0, 0, False, 0.0]
    given_values: list[dict[str, Any]] = [{"k": value} for number in numbers for value in (number, [number], [[number]])]
    spans = [Span(CORE, "a" * 32, f"{n:016x}", None, "x", Kind.CLIENT, 0, 1, values) for n, values in enumerate(given_values)]
    got = [attributes(span)["k"] for span in encoded(spans).resource_spans[0].scope_spans[0].spans]
    assert list(map(repr, got)) == [repr(values["k"]) for values in given_values]


def test_a_link_is_encoded_once_for_all_spans_that_hold_it() -> None:
    link = Link("d" * 32, "e" * 16, {"n": 1})
    spans = [Span(CORE, "a" * 32, f"{n:016x}", None, "x", Kind.CLIENT, 0, 1, links=[link]) for n in range(2)]
    first = encoded(spans[:1])
    before = link.encoded
    assert before
    second = encoded(spans[1:])
    assert link.encoded is before
    assert [request.resource_spans[0].scope_spans[0].spans[0].links[0].span_id.hex() for request in (first, second)] == [
        "e" * 16,
        "e" * 16,
    ]


def test_long_texts_are_not_kept() -> None:
    values = [{"a_long_text": "x" * 100_000 + str(n)} for n in range(100)]
    spans = [Span(CORE, "a" * 32, f"{n:016x}", None, "x", Kind.CLIENT, 0, 1, {**value}) for n, value in enumerate(values)]
    tracemalloc.start()
    encoded(spans[:10])
    before, _ = tracemalloc.get_traced_memory()
    encoded(spans[10:])
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 1_000_000


def test_one_resource_for_each_process(canned: Run) -> None:
    request = encoded(list(run_spans(canned)), {"OTEL_SERVICE_NAME": "me"})
    names = [attributes(resource.resource)["service.name"] for resource in request.resource_spans]
    assert sorted(names) == ["me", "me.engine-core", "me.worker"]
    assert {scope.scope.name for resource in request.resource_spans for scope in resource.scope_spans} == {"vllm_lite.tracing"}
