"""OTLP JSON lines: one ExportTraceServiceRequest on each line, as collectors' file exporters write it.

Process: readers. Knows: the OTLP/JSON mapping (hex ids, 64-bit numbers as strings, enums as numbers). Does not know: networks.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from vllm_lite.tracing.process import Process
from vllm_lite.tracing.records import AttributeValue
from vllm_lite.tracing.spans import Event, Link, Span
from vllm_lite.tracing.spans.environment import SCOPE, resource_attributes

LINE_SPANS = 1000
_ERROR = 2  # Status.StatusCode
_HAS_IS_REMOTE, _IS_REMOTE = 0x100, 0x200  # SpanFlags


def write_otlp_json(spans: Iterable[Span], path: Path, environ: Mapping[str, str] | None = None) -> int:
    """Write `spans` to `path`, compressed where its name ends in .gz. Returns how many there were."""
    count, env = 0, os.environ if environ is None else environ
    with _open(path) as file:
        for part in _parts(spans):
            count += len(part)
            file.write(json.dumps(otlp_request(part, env), separators=(",", ":")) + "\n")
    return count


def otlp_request(spans: Iterable[Span], environ: Mapping[str, str]) -> dict[str, Any]:
    """One ExportTraceServiceRequest (which is also a TracesData) as plain objects."""
    by_process: dict[int, tuple[Process, list[Span]]] = {}
    for span in spans:
        by_process.setdefault(id(span.process), (span.process, []))[1].append(span)
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource_attributes(process, environ))},
                "scopeSpans": [{"scope": SCOPE, "spans": [_span(span) for span in own]}],
            }
            for process, own in by_process.values()
        ]
    }


def _open(path: Path) -> TextIO:
    return gzip.open(path, "wt", encoding="utf-8") if path.suffix == ".gz" else path.open("w", encoding="utf-8")


def _parts(spans: Iterable[Span]) -> Iterator[list[Span]]:
    iterator = iter(spans)
    while part := list(itertools.islice(iterator, LINE_SPANS)):
        yield part


def _span(span: Span) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "traceState": span.tracestate,
        "parentSpanId": span.parent_span_id,
        "flags": _HAS_IS_REMOTE | (_IS_REMOTE if span.remote_parent and span.parent_span_id else 0),
        "name": span.name,
        "kind": int(span.kind),
        "startTimeUnixNano": str(span.start),
        "endTimeUnixNano": str(span.end),
        "attributes": _attributes(span.attributes),
        "droppedAttributesCount": span.dropped_attributes,
        "events": [_event(event) for event in span.events],
        "droppedEventsCount": span.dropped_events,
        "links": [_link(link) for link in span.links],
        "droppedLinksCount": span.dropped_links,
        "status": None if span.error is None else {"code": _ERROR, "message": span.error},
    }
    return {name: value for name, value in fields.items() if value not in (None, [], 0)}


def _event(event: Event) -> dict[str, Any]:
    return {"timeUnixNano": str(event.t), "name": event.name, "attributes": _attributes(event.attributes)}


def _link(link: Link) -> dict[str, Any]:
    flags = _HAS_IS_REMOTE | _IS_REMOTE
    return {"traceId": link.trace_id, "spanId": link.span_id, "attributes": _attributes(link.attributes), "flags": flags}


def _attributes(attributes: Mapping[str, AttributeValue]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in attributes.items()]


def _value(value: AttributeValue) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    return {"arrayValue": {"values": [_value(item) for item in value]}}
