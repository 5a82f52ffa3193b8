"""Jaeger's own JSON: the Jaeger UI opens it in its upload tab, without any server.

Process: readers. Knows: that format; times in whole microseconds. Does not know: networks. A link's attributes have no place in
it and are left out.
Mirrors: nothing in vLLM.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from vllm_lite.tracing.process import Process
from vllm_lite.tracing.records import AttributeValue
from vllm_lite.tracing.spans import Span
from vllm_lite.tracing.spans.environment import SCOPE, resource_attributes

_TYPES = {bool: "bool", int: "int64", float: "float64", str: "string"}


def write_jaeger_json(spans: Iterable[Span], path: Path, environ: Mapping[str, str]) -> int:
    """Write `spans` to `path`, sorted into traces. Returns how many there were."""
    traces = jaeger_traces(spans, environ)
    path.write_bytes(msgspec.json.encode({"data": traces}))
    return sum(len(trace["spans"]) for trace in traces)


def jaeger_traces(spans: Iterable[Span], environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """One object for each trace, in the order in which the traces begin."""
    by_trace: dict[str, list[Span]] = {}
    for span in spans:
        by_trace.setdefault(span.trace_id, []).append(span)
    ordered = sorted(by_trace.values(), key=lambda own: min(span.start for span in own))
    return [_trace(own, environ) for own in ordered]


def _trace(spans: list[Span], environ: Mapping[str, str]) -> dict[str, Any]:
    numbers = {process: f"p{number}" for number, process in enumerate(dict.fromkeys(span.process for span in spans), 1)}
    return {
        "traceID": spans[0].trace_id,
        "spans": [_span(span, numbers[span.process]) for span in spans],
        "processes": {number: _process(process, environ) for process, number in numbers.items()},
        "warnings": None,
    }


def _process(process: Process, environ: Mapping[str, str]) -> dict[str, Any]:
    attributes = resource_attributes(process, environ)
    return {"serviceName": attributes.pop("service.name", "unknown_service"), "tags": _tags(attributes)}


def _span(span: Span, process: str) -> dict[str, Any]:
    """The parent comes first in `references`: the UI takes the first one that it finds in the trace."""
    parent = [("CHILD_OF", span.trace_id, span.parent_span_id)] if span.parent_span_id is not None else []
    links = [("FOLLOWS_FROM", link.trace_id, link.span_id) for link in span.links]
    tags: dict[str, AttributeValue] = {  # what OpenTelemetry has fields for
        "span.kind": span.kind.name.lower(),
        "otel.library.name": SCOPE["name"],
        "otel.library.version": SCOPE["version"],
    }
    if span.error is not None:
        tags |= {"error": True, "otel.status_code": "ERROR", "otel.status_description": span.error}
    return {
        "traceID": span.trace_id,
        "spanID": span.span_id,
        "operationName": span.name,
        "references": [{"refType": kind, "traceID": trace, "spanID": other} for kind, trace, other in parent + links],
        "startTime": span.start // 1000,
        "duration": span.end // 1000 - span.start // 1000,
        "tags": _tags({**span.attributes, **tags}),
        "logs": [{"timestamp": e.t // 1000, "fields": _tags({"event": e.name, **e.attributes})} for e in span.events],
        "processID": process,
        "warnings": None,
    }


def _tags(attributes: Mapping[str, AttributeValue]) -> list[dict[str, Any]]:
    told = {key: value if type(value) in _TYPES else json.dumps(value, ensure_ascii=False) for key, value in attributes.items()}
    return [{"key": key, "type": _TYPES[type(value)], "value": value} for key, value in told.items()]
