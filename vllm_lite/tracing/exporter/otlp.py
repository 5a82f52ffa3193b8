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
from vllm_lite.tracing.spans import Event, Kind, Link, Span
from vllm_lite.tracing.spans.environment import SCOPE, resource_attributes

HAS_IS_REMOTE = pb.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
IS_REMOTE = HAS_IS_REMOTE | pb.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
CACHED = 8192  # encoded attributes; most repeat
# Field numbers of the repeated fields: ExportTraceServiceRequest.resource_spans and so on down.
RESOURCE_SPANS, RESOURCE, SCOPE_SPANS, THE_SCOPE, SPANS, RESOURCE_ATTRIBUTES = 1, 1, 2, 1, 2, 1
SPAN_ATTRIBUTES, SPAN_EVENTS, SPAN_LINKS, EVENT_ATTRIBUTES, LINK_ATTRIBUTES = 9, 11, 13, 3, 4
_TIME, _TIMES = struct.Struct("<BQ"), struct.Struct("<BQBQ")
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
    times = _TIMES.pack(0x39, span.start, 0x41, span.end)  # fields 7 and 8, eight bytes each
    parent = b"" if span.parent_span_id is None else _item(4, bytes.fromhex(span.parent_span_id))
    ids = _item(1, bytes.fromhex(span.trace_id)) + _item(2, bytes.fromhex(span.span_id)) + parent
    kind = _kind(span.name, span.kind, span.remote_parent and span.parent_span_id is not None)
    attributes = _attributes(SPAN_ATTRIBUTES, span.attributes)
    events = [_event(event) for event in span.events]
    links = [link.encoded or _encode_link(link) for link in span.links]
    return b"".join((ids, times, kind, _rare(span), attributes, *events, *links))


@functools.lru_cache(CACHED)
def _kind(name: str, kind: Kind, remote: bool) -> bytes:
    flags = IS_REMOTE if remote else HAS_IS_REMOTE
    return bytes(pb.Span(name=name, kind=pb.Span.SpanKind.ValueType(kind), flags=flags).SerializeToString())


def _rare(span: Span) -> bytes:
    """What few spans have."""
    lost = span.dropped_attributes, span.dropped_events, span.dropped_links
    if span.error is None and span.tracestate is None and lost == (0, 0, 0):
        return b""
    message = pb.Span(dropped_attributes_count=lost[0], dropped_events_count=lost[1], dropped_links_count=lost[2])
    message.trace_state = span.tracestate or ""
    if span.error is not None:
        message.status.code, message.status.message = pb.Status.STATUS_CODE_ERROR, span.error
    return bytes(message.SerializeToString())


def _encode_link(link: Link) -> bytes:
    ids = bytes.fromhex(link.trace_id), bytes.fromhex(link.span_id)
    head = pb.Span.Link(trace_id=ids[0], span_id=ids[1], flags=IS_REMOTE).SerializeToString()
    link.encoded = _item(SPAN_LINKS, head + _attributes(LINK_ATTRIBUTES, link.attributes))
    return link.encoded


def _event(event: Event) -> bytes:
    head = _TIME.pack(0x09, event.t) + _event_name(event.name)  # fields 1 and 2
    return _item(SPAN_EVENTS, head + _attributes(EVENT_ATTRIBUTES, event.attributes))


@functools.lru_cache(CACHED)
def _event_name(name: str) -> bytes:
    return _item(2, name.encode())


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
