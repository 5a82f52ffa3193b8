"""Spans as OpenTelemetry's own objects, for its own encoder: what ours is compared with."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags, TraceState

from vllm_lite.tracing.spans import Span
from vllm_lite.tracing.spans.environment import SCOPE, resource_attributes


def official_request(spans: Iterable[Span], environ: dict[str, str]) -> ExportTraceServiceRequest:
    """What OpenTelemetry's encoder makes of them; a status that says nothing is as good as none."""
    request = encode_spans([OfficialSpan(span, environ) for span in spans])
    for resource in request.resource_spans:
        for span in resource.scope_spans[0].spans:
            if not span.status.ByteSize():
                span.ClearField("status")
    return request


class OfficialSpan(ReadableSpan):
    """A finished span with the counts of what it lost, which the SDK knows only of what it dropped itself."""

    def __init__(self, span: Span, environ: dict[str, str]) -> None:
        parent = span.parent_span_id
        super().__init__(
            name=span.name,
            context=_context(span.trace_id, span.span_id, span.tracestate),
            parent=None if parent is None else _context(span.trace_id, parent, remote=span.remote_parent),
            resource=Resource(resource_attributes(span.process, environ)),
            attributes=span.attributes,
            events=[Event(event.name, event.attributes, event.t) for event in span.events],
            links=[trace.Link(_context(k.trace_id, k.span_id, remote=True), k.attributes) for k in span.links],
            kind=trace.SpanKind[span.kind.name],
            instrumentation_scope=InstrumentationScope(**SCOPE),
            status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=span.start,
            end_time=span.end,
        )
        self._lost = span.dropped_attributes, span.dropped_events, span.dropped_links

    dropped_attributes = property(lambda self: self._lost[0])
    dropped_events = property(lambda self: self._lost[1])
    dropped_links = property(lambda self: self._lost[2])


def _context(trace_id: str, span_id: str, tracestate: str | None = None, remote: bool = False) -> SpanContext:
    state = TraceState.from_header([tracestate]) if tracestate else None
    return SpanContext(int(trace_id, 16), int(span_id, 16), remote, TraceFlags(TraceFlags.SAMPLED), state)
