from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from vllm_lite.tracing.context import (
    SpanContext,
    child_headers,
    header,
    new_span_id,
    new_trace_id,
    parent_of,
    parse_traceparent,
)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("value", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"00-{TRACE}-{SPAN}-02", False),
        (f" 00-{TRACE}-{SPAN}-01 ", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", True),
    ],
)
def test_a_parent_is_read(value: str, sampled: bool) -> None:
    assert parse_traceparent(value) == SpanContext(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "garbage",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE[1:]}-{SPAN}-01",
    ],
)
def test_what_w3c_ignores_is_no_parent(value: str | None) -> None:
    assert parse_traceparent(value) is None


hexadecimal = st.text("0123456789abcdefF-", min_size=1, max_size=33)


@given(st.from_regex(r"\A[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[a-z]{0,3})?\Z") | hexadecimal)
def test_t15_same_verdict_as_opentelemetry(value: str) -> None:
    context = TraceContextTextMapPropagator().extract({"traceparent": value}, Context())
    theirs = trace.get_current_span(context).get_span_context()
    ours = parse_traceparent(value)
    if not theirs.is_valid:
        assert ours is None
    else:
        assert ours == (f"{theirs.trace_id:032x}", f"{theirs.span_id:016x}", theirs.trace_flags.sampled)


def test_header_names_in_any_case() -> None:
    headers = {"TraceParent": f"00-{TRACE}-{SPAN}-01", "TRACESTATE": "a=1"}
    assert parent_of(headers) == SpanContext(TRACE, SPAN, True)
    assert header(headers, "tracestate") == "a=1"
    assert header(headers, "baggage") is None
    assert parent_of(None) is parent_of({}) is None


def test_child_headers_replace_only_the_traceparent() -> None:
    headers = {"Traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=1", "baggage": "b=2", "X-Other": "c"}
    own = SpanContext(TRACE, "1" * 16, True)
    assert child_headers(headers, own) == {
        "traceparent": f"00-{TRACE}-{'1' * 16}-01",
        "tracestate": "a=1",
        "baggage": "b=2",
        "X-Other": "c",
    }
    assert child_headers(None, own) == {"traceparent": own.traceparent()}


def test_a_traceparent_reads_back() -> None:
    for sampled in (True, False):
        context = SpanContext(new_trace_id(), new_span_id(), sampled)
        assert parse_traceparent(context.traceparent()) == context


def test_new_ids_differ() -> None:
    assert len({new_trace_id() for _ in range(100)}) == len({new_span_id() for _ in range(100)}) == 100
