"""From our spans to OTLP's bytes.

Process: exporter. Knows: the generated protobuf classes. Does not know: spools, journeys or networks. Built for spans of which
many hold hundreds of links and events that are all alike: a repeated field's items may stand one after another anywhere in
their message, so each is encoded once and appended as bytes. The SDK's own encoder, which a test compares this one with,
takes ten times as long (`benchmarks/trace_exporter.py`).
Mirrors: vllm/tracing/otel.py
"""

import functools
import struct
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any, TypeVar

from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from vllm_lite.tracing.process import Process
from vllm_lite.tracing.records import AttributeValue
from vllm_lite.tracing.spans import Event, Link, Span
from vllm_lite.tracing.spans.environment import SCOPE, resource_attributes

NO_FLAGS = pb.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
REMOTE = NO_FLAGS | pb.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
CACHED, LONG = 2048, 1024  # entries of one cache, and bytes of one that is too long to keep
K = TypeVar("K")
V = TypeVar("V", bound=Sized)
# Numbers of repeated fields: ExportTraceServiceRequest.resource_spans and so on down.
RESOURCE_SPANS, RESOURCE, SCOPE_SPANS, THE_SCOPE, SPANS, RESOURCE_ATTRIBUTES = 1, 1, 2, 1, 2, 1
SPAN_NAME, SPAN_ATTRIBUTES, SPAN_EVENTS, SPAN_LINKS, EVENT_NAME, EVENT_ATTRIBUTES, LINK_ATTRIBUTES = 5, 9, 11, 13, 2, 3, 4
KEY, VALUE, STRING, ARRAY, VALUES = 1, 2, 1, 5, 1  # of an attribute, of a value that is text or a list, and of a list
# What each span has, every part behind its tag (a number and a wire type), and behind its length where that is not given.
_HEAD, _LINK_FLAGS, _EVENT_TIME, _DOUBLE = map(struct.Struct, ("<BBBQBQ2sI", "<BI", "<BQ", "<d"))
_TRACE_ID, _SPAN_ID, _PARENT = "0a10", "1208", "2208"  # in hex digits as the ids are
_KIND, _START, _END, _TIME, _FLAGS = 6 << 3, 7 << 3 | 1, 8 << 3 | 1, 1 << 3 | 1, b"\x85\x01"  # 16 << 3 | 5 is too large for one
_REMOTE_LINK, _BOOL, _INT, _FLOAT = _LINK_FLAGS.pack(6 << 3 | 5, REMOTE), 2 << 3, 3 << 3, 4 << 3 | 1


def _item(field: int, body: bytes) -> bytes:
    """`body` as an item of that field."""
    return _head(field, len(body)) + body


_SHORT = [[bytes((field << 3 | 2, length)) for length in range(0x80)] for field in range(16)]


def _head(field: int, length: int) -> bytes:
    """The tag of an item of that field, and its length in groups of seven bits."""
    if length < 0x80:
        return _SHORT[field][length]
    if length < 0x4000:
        return bytes((field << 3 | 2, length & 0x7F | 0x80, length >> 7))
    return bytes((field << 3 | 2, *_sevens(length)))


def _sevens(number: int) -> bytearray:
    """It in groups of seven bits, the lowest first."""
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return groups


_SCOPE = _item(THE_SCOPE, InstrumentationScope(name=SCOPE["name"], version=SCOPE["version"]).SerializeToString())


class Encoder:
    """Encodes ExportTraceServiceRequests, with one resource for each process."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._resources: dict[Process, bytes] = {}

    def request(self, spans: Iterable[Span]) -> bytes:
        """One request with all `spans`."""
        scopes: dict[Process, list[bytes]] = {}
        for span in spans:
            body = _span(span)
            if (scope := scopes.get(span.process)) is None:
                scope = scopes[span.process] = [_SCOPE]
            scope += _head(SPANS, len(body)), body
        parts = list[bytes]()
        for process, scope in scopes.items():
            resource, size = self._resource(process), sum(map(len, scope))
            head = _head(SCOPE_SPANS, size)
            parts += _head(RESOURCE_SPANS, len(resource) + len(head) + size), resource, head, *scope
        return b"".join(parts)

    def _resource(self, process: Process) -> bytes:
        if process not in self._resources:
            attributes = resource_attributes(process, self._environ)
            self._resources[process] = _item(RESOURCE, _attributes(RESOURCE_ATTRIBUTES, attributes))
        return self._resources[process]


def _span(span: Span) -> bytes:
    parent = span.parent_span_id
    flags = REMOTE if span.remote_parent and parent is not None else NO_FLAGS
    ids = f"{_TRACE_ID}{span.trace_id}{_SPAN_ID}{span.span_id}"
    parts = [
        bytes.fromhex(f"{ids}{_PARENT}{parent}" if parent else ids),
        _name(SPAN_NAME, span.name),
        _HEAD.pack(_KIND, span.kind, _START, span.start, _END, span.end, _FLAGS, flags),
    ]
    if span.error is not None or span.tracestate or span.dropped_attributes or span.dropped_events or span.dropped_links:
        parts.append(_rare(span))
    if span.attributes:
        parts.append(_attributes(SPAN_ATTRIBUTES, span.attributes))
    if span.events:
        parts += [_event(event) for event in span.events]
    if span.links:
        parts += [link.encoded or _encode_link(link) for link in span.links]
    return b"".join(parts)


def _rare(span: Span) -> bytes:
    """What few spans have."""
    rest = pb.Span(
        trace_state=span.tracestate or "",
        dropped_attributes_count=span.dropped_attributes,
        dropped_events_count=span.dropped_events,
        dropped_links_count=span.dropped_links,
        status=None if span.error is None else pb.Status(code=pb.Status.STATUS_CODE_ERROR, message=span.error),
    )
    return bytes(rest.SerializeToString())


def _encode_link(link: Link) -> bytes:
    ids = bytes.fromhex(f"{_TRACE_ID}{link.trace_id}{_SPAN_ID}{link.span_id}")
    body = ids + _REMOTE_LINK + _attributes(LINK_ATTRIBUTES, link.attributes)
    link.encoded = _item(SPAN_LINKS, body)
    return link.encoded


def _event(event: Event) -> bytes:
    name, t, attributes = event
    return _item(SPAN_EVENTS, _EVENT_TIME.pack(_TIME, t) + _name(EVENT_NAME, name) + _attributes(EVENT_ATTRIBUTES, attributes))


@functools.lru_cache(CACHED)
def _name(field: int, name: str) -> bytes:
    return _item(field, name.encode())


class _Made(dict[K, V]):
    """What `make` makes of a key, once, but for what is long; forgets all when it holds too many."""

    def __init__(self, make: Callable[[K], V]) -> None:
        self._make = make

    def __missing__(self, key: K) -> V:
        if len(self) >= CACHED:
            self.clear()
        made = self._make(key)
        if len(made) < LONG:
            self[key] = made
        return made


def _pairs(field: int) -> _Made[str, _Made[Any, bytes]]:
    """Encoded attributes, by name and then by value: most come again."""
    return _Made(lambda name: _Made(functools.partial(_pair, field, _key(name))))


_FIELDS = (RESOURCE_ATTRIBUTES, SPAN_ATTRIBUTES, EVENT_ATTRIBUTES, LINK_ATTRIBUTES)
_KNOWN = {field: {kind: _pairs(field) for kind in (str, int, bool)} for field in _FIELDS}  # True is another 1


def _attributes(field: int, attributes: Mapping[str, AttributeValue]) -> bytes:
    if not attributes:
        return b""
    known = _KNOWN[field]
    return b"".join(
        [
            known[kind][name][value]
            if (kind := type(value)) in known
            else _double(field, name) + _DOUBLE.pack(value)
            if isinstance(value, float)  # a time mostly, seldom the same twice
            else _pair(field, _key(name), value)
            for name, value in attributes.items()
        ]
    )


def _key(name: str) -> bytes:
    return _item(KEY, name.encode())


def _pair(field: int, key: bytes, value: AttributeValue) -> bytes:
    return _item(field, key + _item(VALUE, _any(value)))


@functools.lru_cache(CACHED)
def _double(field: int, name: str) -> bytes:
    """A pair but for its value."""
    return _pair(field, _key(name), 0.0)[: -_DOUBLE.size]


def _any(value: AttributeValue) -> bytes:
    if isinstance(value, str):
        return _item(STRING, value.encode())
    if isinstance(value, bool):
        return bytes((_BOOL, value))
    if isinstance(value, int):
        return bytes((_INT, *_sevens(value & 2**64 - 1)))  # two's complement
    if isinstance(value, float):
        return bytes((_FLOAT, *_DOUBLE.pack(value)))
    return _item(ARRAY, b"".join([_item(VALUES, _any(item)) for item in value]))
