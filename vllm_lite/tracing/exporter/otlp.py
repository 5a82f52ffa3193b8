"""From our spans to OpenTelemetry's, and the official OTLP exporters.

Process: exporter. Knows: OpenTelemetry's SDK. Does not know: spools or journeys.
Mirrors: vllm/tracing/otel.py
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Status, StatusCode, TraceFlags, TraceState

from vllm_lite import __version__
from vllm_lite.tracing.exporter.settings import GRPC, Settings
from vllm_lite.tracing.process import Process
from vllm_lite.tracing.spans import Kind, Link, Span
from vllm_lite.tracing.spans.resource import resource_attributes

_SCOPE = InstrumentationScope("vllm_lite.tracing", __version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_KINDS = {
    Kind.INTERNAL: trace.SpanKind.INTERNAL,
    Kind.SERVER: trace.SpanKind.SERVER,
    Kind.CLIENT: trace.SpanKind.CLIENT,
    Kind.PRODUCER: trace.SpanKind.PRODUCER,
    Kind.CONSUMER: trace.SpanKind.CONSUMER,
}


class ExportedSpan(ReadableSpan):
    """A finished span with counts of what it lost before it came here; the SDK counts only what it dropped itself."""

    def __init__(self, span: Span, resource: Resource) -> None:
        context = _context(span.trace_id, span.span_id, span.tracestate)
        parent = span.parent_span_id
        super().__init__(
            name=span.name,
            context=context,
            parent=None if parent is None else _context(span.trace_id, parent, remote=span.remote_parent),
            resource=resource,
            attributes=span.attributes,
            events=[Event(event.name, event.attributes, event.t) for event in span.events],
            links=[_link(link) for link in span.links],
            kind=_KINDS[span.kind],
            instrumentation_scope=_SCOPE,
            status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=span.start,
            end_time=span.end,
        )
        self._lost = span.dropped_attributes, span.dropped_events, span.dropped_links

    @property
    def dropped_attributes(self) -> int:
        """Attributes beyond the limit."""
        return self._lost[0]

    @property
    def dropped_events(self) -> int:
        """Events beyond the limit, or between the ends that a long request keeps."""
        return self._lost[1]

    @property
    def dropped_links(self) -> int:
        """Links beyond the limit."""
        return self._lost[2]


class Converter:
    """Makes ReadableSpans, with one Resource for each process."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._resources: dict[int, Resource] = {}

    def convert(self, span: Span) -> ReadableSpan:
        """`span` as the official exporters want it."""
        return ExportedSpan(span, self._resource(span.process))

    def _resource(self, process: Process) -> Resource:
        if id(process) not in self._resources:
            own = Resource(resource_attributes(process, self._environ))
            sdk = {name: value for name, value in Resource.create().attributes.items() if name.startswith("telemetry.")}
            self._resources[id(process)] = Resource(sdk).merge(own)
        return self._resources[id(process)]


def make_exporter(settings: Settings) -> SpanExporter:
    """The official exporter for the protocol; it reads headers, timeout and TLS files from the environment itself."""
    if settings.protocol == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        compression = importlib.import_module("grpc").Compression  # grpc publishes no types
        return GrpcExporter(
            endpoint=settings.endpoint,
            insecure=settings.endpoint.startswith("http://"),
            compression=compression.Gzip if settings.compression == "gzip" else compression.NoCompression,
        )
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(endpoint=settings.endpoint, compression=Compression(settings.compression))


def _context(trace_id: str, span_id: str, tracestate: str | None = None, remote: bool = False) -> trace.SpanContext:
    state = TraceState.from_header([tracestate]) if tracestate else None
    return trace.SpanContext(int(trace_id, 16), int(span_id, 16), remote, _SAMPLED, state)


def _link(link: Link) -> trace.Link:
    return trace.Link(_context(link.trace_id, link.span_id, remote=True), link.attributes)
