"""W3C trace context: ids, traceparent in and out.

Process: all. Knows: headers and ids. Does not know: requests, or who is sampled.
Mirrors: vllm/tracing/utils.py
"""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

TRACEPARENT = "traceparent"
_PATTERN = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


class SpanContext(NamedTuple):
    """Where a span stands: its trace, its own id, and whether it is recorded."""

    trace_id: str
    span_id: str
    sampled: bool

    def traceparent(self) -> str:
        """The header that makes this span the receiver's parent."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


def new_trace_id() -> str:
    """16 bytes from the operating system, as hex: unique across forks and hosts."""
    return os.urandom(16).hex()


def new_span_id() -> str:
    """8 bytes from the operating system, as hex."""
    return os.urandom(8).hex()


def parse_traceparent(value: str | None) -> SpanContext | None:
    """The sender's span, or None for a header that W3C says to ignore.

    Same verdicts as OpenTelemetry's propagator: all-zero ids, version ff, upper case and garbage are no parent; a future
    version may carry more fields. Source: W3C Trace Context, section 3.2.
    """
    match = _PATTERN.fullmatch(value.strip()) if value else None
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or trace_id == "0" * 32 or span_id == "0" * 16:
        return None
    return SpanContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def header(headers: Mapping[str, str] | None, name: str) -> str | None:
    """The value of header `name` (lower case), whichever case the sender wrote it in."""
    for key, value in headers.items() if headers else ():
        if key.lower() == name:
            return value
    return None


def parent_of(headers: Mapping[str, str] | None) -> SpanContext | None:
    """The parent that `headers` name, by their traceparent."""
    return parse_traceparent(header(headers, TRACEPARENT))


def child_headers(headers: Mapping[str, str] | None, parent: SpanContext) -> dict[str, str]:
    """A copy of `headers` whose traceparent names `parent`; all others, tracestate and baggage among them, unchanged."""
    kept = {name: value for name, value in headers.items() if name.lower() != TRACEPARENT} if headers else {}
    return {TRACEPARENT: parent.traceparent(), **kept}
