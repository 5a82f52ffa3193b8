"""Puts trace ids into log lines, so that a line of a log leads to the journey of its request.

Process: front end, and the caller's code around `generate()`. Knows: logging, one context variable. Does not know: requests.
Mirrors: nothing in vLLM.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from vllm_lite.tracing.context import SpanContext

_current: ContextVar[SpanContext | None] = ContextVar("vllm_lite_span", default=None)


@contextmanager
def logged_as(context: SpanContext | None) -> Iterator[None]:
    """Log lines of this task, inside the block, belong to that span."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


class TraceIdFilter(logging.Filter):
    """Gives each record otelTraceID, otelSpanID and otelTraceSampled, as OpenTelemetry's own logging calls them ("0" and False
    outside of any span). Add it to a handler, and the names to its format."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets every record pass."""
        context = _current.get()
        record.otelTraceID = context.trace_id if context else "0"
        record.otelSpanID = context.span_id if context else "0"
        record.otelTraceSampled = context is not None and context.sampled
        return True
