"""OTLP JSON lines: one ExportTraceServiceRequest on each line, as collectors' file exporters write it, and back to spans.

Process: readers. Knows: the OTLP/JSON mapping (hex ids, 64-bit numbers as strings, enums as numbers). Does not know: networks.
Mirrors: nothing in vLLM.
"""

import gzip
import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal, cast

import msgspec

from vllm_lite.tracing.process import Process
from vllm_lite.tracing.records import AttributeValue
from vllm_lite.tracing.spans import Event, Kind, Link, Span
from vllm_lite.tracing.spans.environment import SCOPE, resource_attributes
from vllm_lite.tracing.spans.model import Attributes

LINE_SPANS = 1000
_ERROR = 2  # Status.StatusCode
_HAS_IS_REMOTE, _IS_REMOTE = 0x100, 0x200  # SpanFlags
_KINDS = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
Json = dict[str, Any]


def write_otlp_json(spans: Iterable[Span], path: Path, environ: Mapping[str, str]) -> int:
    """Write `spans` to `path`, compressed where its name ends in .gz. Returns how many there were."""
    count, parts = 0, iter(spans)
    with _open(path, "wb") as file:
        while part := list(itertools.islice(parts, LINE_SPANS)):
            count += len(part)
            file.write(msgspec.json.encode(otlp_request(part, environ)) + b"\n")
    return count


def read_otlp_json(path: Path) -> Iterator[Span]:
    """The spans of a file of such lines, ours or a collector's. Raises ValueError that names a line which is none."""
    processes: dict[bytes, Process] = {}
    try:
        with _open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield from _read_request(line, processes)
                except (LookupError, TypeError, AttributeError, ValueError) as error:
                    raise ValueError(f"{path}, line {number}, is no OTLP request: {error!r}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is no whole gzip file: {error}") from None


def otlp_request(spans: Iterable[Span], environ: Mapping[str, str]) -> Json:
    """One ExportTraceServiceRequest (which is also a TracesData) as plain objects."""
    by_process: dict[Process, list[Span]] = {}
    for span in spans:
        by_process.setdefault(span.process, []).append(span)
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource_attributes(process, environ))},
                "scopeSpans": [{"scope": SCOPE, "spans": [_span(span) for span in own]}],
            }
            for process, own in by_process.items()
        ]
    }


def _open(path: Path, mode: Literal["rb", "wb"]) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path, mode)) if path.suffix == ".gz" else path.open(mode)


def _span(span: Span) -> Json:
    remote = span.remote_parent and span.parent_span_id is not None
    fields: Json = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "traceState": span.tracestate,
        "parentSpanId": span.parent_span_id,
        "flags": _HAS_IS_REMOTE | (_IS_REMOTE if remote else 0),
        "name": span.name,
        "kind": int(span.kind),
        "startTimeUnixNano": str(span.start),
        "endTimeUnixNano": str(span.end),
        "attributes": _attributes(span.attributes),
        "droppedAttributesCount": span.dropped_attributes,
        "events": [{"timeUnixNano": str(e.t), "name": e.name, "attributes": _attributes(e.attributes)} for e in span.events],
        "droppedEventsCount": span.dropped_events,
        "links": [_link(link) for link in span.links],
        "droppedLinksCount": span.dropped_links,
        "status": None if span.error is None else {"code": _ERROR, "message": span.error},
    }
    return {name: value for name, value in fields.items() if value not in (None, [], 0)}


def _link(link: Link) -> Json:
    flags = _HAS_IS_REMOTE | _IS_REMOTE
    return {"traceId": link.trace_id, "spanId": link.span_id, "attributes": _attributes(link.attributes), "flags": flags}


def _attributes(attributes: Mapping[str, AttributeValue]) -> list[Json]:
    return [{"key": name, "value": _value(value)} for name, value in attributes.items()]


def _value(value: AttributeValue) -> Json:
    if isinstance(value, (bool, int, float, str)):
        return {_KINDS[type(value)]: str(value) if type(value) is int else value}
    return {"arrayValue": {"values": [_value(item) for item in value]}}


# ---- and back -------------------------------------------------------------------------------------------------------------


def _read_request(line: bytes, processes: dict[bytes, Process]) -> Iterator[Span]:
    for resource in msgspec.json.decode(line)["resourceSpans"] if line.strip() else ():
        told = _mapping(resource.get("resource", {}).get("attributes", ()))
        process = processes.setdefault(msgspec.json.encode(told), _process(told))
        for scope in resource.get("scopeSpans", ()):
            yield from (_read_span(process, fields) for fields in scope.get("spans", ()))


def _process(told: Attributes) -> Process:
    """Who a resource stands for. It goes out again as it came."""
    host, role = str(told.get("host.name", "")), str(told.get("service.instance.id", "")).rpartition(":")[2]
    return Process(role or str(told.get("service.name", "")), int(str(told.get("process.pid", 0))), host, "", resource=told)


def _read_span(process: Process, fields: Json) -> Span:
    status = fields.get("status", {})
    return Span(
        process,
        _id(fields["traceId"], 32),
        _id(fields["spanId"], 16),
        _id(fields["parentSpanId"], 16) if fields.get("parentSpanId") else None,
        fields["name"],
        Kind(fields.get("kind") or 1),  # 0 says nothing
        _time(fields["startTimeUnixNano"]),
        _time(fields["endTimeUnixNano"]),
        _mapping(fields.get("attributes", ())),
        [Event(e["name"], _time(e["timeUnixNano"]), _mapping(e.get("attributes", ()))) for e in fields.get("events", ())],
        [Link(_id(k["traceId"], 32), _id(k["spanId"], 16), _mapping(k.get("attributes", ()))) for k in fields.get("links", ())],
        status.get("message", "") if status.get("code") == _ERROR else None,
        fields.get("traceState"),
        bool(fields.get("flags", 0) & _IS_REMOTE),
        fields.get("droppedAttributesCount", 0),
        fields.get("droppedEventsCount", 0),
        fields.get("droppedLinksCount", 0),
    )


def _id(text: str, digits: int) -> str:
    if 2 * len(bytes.fromhex(text)) != digits:
        raise ValueError(f"{text!r} is no id of {digits} hex digits")
    return text


def _time(text: str | int) -> int:
    if not 0 <= (t := int(text)) < 1 << 64:
        raise ValueError(f"{text!r} is no time in nanoseconds since 1970")
    return t


def _mapping(attributes: Iterable[Json]) -> Attributes:
    return {item["key"]: _read_value(item["value"]) for item in attributes}


def _read_value(value: Json) -> Any:
    [(kind, content)] = value.items()
    if kind == "arrayValue":
        return [_read_value(item) for item in content.get("values", ())]
    return int(content) if kind == "intValue" else float(content) if kind == "doubleValue" else content
