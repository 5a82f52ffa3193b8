from __future__ import annotations

from vllm_lite.tracing.request_trace import RequestTrace


def test_headers_make_the_given_span_the_parent() -> None:
    trace = RequestTrace(7, "a" * 32, "b" * 16, level=2)
    sent = trace.headers({"traceparent": "00-" + "f" * 32 + "-" + "e" * 16 + "-01", "tracestate": "x=1"}, "c" * 16)
    assert sent == {"traceparent": f"00-{'a' * 32}-{'c' * 16}-01", "tracestate": "x=1"}
    assert trace.traceparent("d" * 16) == f"00-{'a' * 32}-{'d' * 16}-01"


def test_it_starts_without_a_mailbox() -> None:
    trace = RequestTrace(7, "a" * 32, "b" * 16, level=2)
    assert trace.mailbox() is None
    assert trace.t_first_token is None
    assert not trace.closed
    assert not hasattr(trace, "__dict__")
