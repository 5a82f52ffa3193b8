"""From our spans to OTLP's bytes.

Process: exporter. Knows: the generated protobuf classes. Does not know: spools, journeys or networks. Built for spans of which
many hold hundreds of links and events that are all alike: a repeated field's items may stand one after another anywhere in
their message, so each is encoded once and appended as bytes. The SDK's own encoder, which a test compares this one with,
takes ten times as long (`benchmarks/trace_exporter.py`).
Mirrors: vllm/tracing/otel.py
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Mapping

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from vllm_lite.tracing.process import Process
from vllm_lite.tracing.records import AttributeValue
from vllm_lite.tracing.spans import Event, Link, Span
from vllm_lite.tracing.spans.environment import SCOPE, resource_attributes

NO_FLAGS = pb.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
REMOTE = NO_FLAGS | pb.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
CACHED = 8192  # encoded attributes; most repeat
# Numbers of repeated fields: ExportTraceServiceRequest.resource_spans and so on down.
RESOURCE_SPANS, RESOURCE, SCOPE_SPANS, THE_SCOPE, SPANS, RESOURCE_ATTRIBUTES = 1, 1, 2, 1, 2, 1
SPAN_ATTRIBUTES, SPAN_EVENTS, SPAN_LINKS, EVENT_NAME, EVENT_ATTRIBUTES, LINK_ATTRIBUTES = 9, 11, 13, 2, 3, 4
_EVENT_TIME = struct.Struct("<BQ")  # behind its tag, which is 9
_SCOPE = InstrumentationScope(name=SCOPE["name"], version=SCOPE["version"]).SerializeToString()


class Encoder:
    """Encodes ExportTraceServiceRequests, with one resource for each process."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._resources: dict[Process, bytes] = {}

    def request(self, spans: Iterable[Span]) -> bytes:
        """One request with all `spans`."""
        scopes: dict[Process, list[bytes]] = {}
        for span in spans:
            scopes.setdefault(span.process, []).append(_item(SPANS, _span(span)))
        return b"".join(_item(RESOURCE_SPANS, self._resource_spans(process, own)) for process, own in scopes.items())

    def _resource_spans(self, process: Process, spans: list[bytes]) -> bytes:
        if process not in self._resources:
            attributes = resource_attributes(process, self._environ)
            self._resources[process] = _item(RESOURCE, _attributes(RESOURCE_ATTRIBUTES, attributes))
        return self._resources[process] + _item(SCOPE_SPANS, _item(THE_SCOPE, _SCOPE) + b"".join(spans))


def _span(span: Span) -> bytes:
    head = pb.Span(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        trace_state=span.tracestate or "",
        parent_span_id=bytes.fromhex(span.parent_span_id or ""),
        flags=REMOTE if span.remote_parent and span.parent_span_id is not None else NO_FLAGS,
        name=span.name,
        kind=pb.Span.SpanKind.ValueType(span.kind),
        start_time_unix_nano=span.start,
        end_time_unix_nano=span.end,
        dropped_attributes_count=span.dropped_attributes,
        dropped_events_count=span.dropped_events,
        dropped_links_count=span.dropped_links,
        status=None if span.error is None else pb.Status(code=pb.Status.STATUS_CODE_ERROR, message=span.error),
    )
    attributes = _attributes(SPAN_ATTRIBUTES, span.attributes)
    events = [_event(event) for event in span.events]
    links = [link.encoded or _encode_link(link) for link in span.links]
    return b"".join((head.SerializeToString(), attributes, *events, *links))


def _encode_link(link: Link) -> bytes:
    head = pb.Span.Link(trace_id=bytes.fromhex(link.trace_id), span_id=bytes.fromhex(link.span_id), flags=REMOTE)
    link.encoded = _item(SPAN_LINKS, head.SerializeToString() + _attributes(LINK_ATTRIBUTES, link.attributes))
    return link.encoded


def _event(event: Event) -> bytes:
    head = _EVENT_TIME.pack(9, event.t) + _event_name(event.name)
    return _item(SPAN_EVENTS, head + _attributes(EVENT_ATTRIBUTES, event.attributes))


@functools.lru_cache(CACHED)
def _event_name(name: str) -> bytes:
    return _item(EVENT_NAME, name.encode())


def _item(field: int, body: bytes) -> bytes:
    """`body` as an item of that field: its tag, its length in groups of seven bits, itself."""
    length = len(body)
    if length < 0x80:
        return bytes((field << 3 | 2, length)) + body
    head = bytearray((field << 3 | 2,))
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + body


def _attributes(field: int, attributes: Mapping[str, AttributeValue]) -> bytes:
    return b"".join(
        [
            _pair(field, name, value if isinstance(value, (str, int, float)) else tuple(value))
            for name, value in attributes.items()
        ]
    )


@functools.lru_cache(CACHED, typed=True)
def _pair(field: int, name: str, value: AttributeValue) -> bytes:
    return _item(field, KeyValue(key=name, value=_value(value)).SerializeToString())


def _value(value: AttributeValue) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    return AnyValue(array_value=ArrayValue(values=[_value(item) for item in value]))
