from __future__ import annotations

import json
from pathlib import Path

from tests.tracing import make
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.spans import Event, Kind, Link, Span, run_spans
from vllm_lite.tracing.writers.jaeger import jaeger_traces, write_jaeger_json


def test_one_span() -> None:
    span = Span(
        make.core(),
        "a" * 32,
        "b" * 16,
        "c" * 16,
        "send x",
        Kind.PRODUCER,
        5_999,
        9_001,
        attributes={"s": "é", "b": True, "i": 3, "f": 0.5, "l": ["a"]},
        events=[Event("put", 7_000, {"tokens": 1})],
        links=[Link("d" * 32, "e" * 16, {"lost": "here"})],
        error="it broke",
    )
    [trace] = jaeger_traces([span], {})
    assert trace["spans"] == [
        {
            "traceID": "a" * 32,
            "spanID": "b" * 16,
            "operationName": "send x",
            "references": [
                {"refType": "CHILD_OF", "traceID": "a" * 32, "spanID": "c" * 16},
                {"refType": "FOLLOWS_FROM", "traceID": "d" * 32, "spanID": "e" * 16},
            ],
            "startTime": 5,
            "duration": 4,
            "tags": [
                {"key": "s", "type": "string", "value": "é"},
                {"key": "b", "type": "bool", "value": True},
                {"key": "i", "type": "int64", "value": 3},
                {"key": "f", "type": "float64", "value": 0.5},
                {"key": "l", "type": "string", "value": '["a"]'},
                {"key": "span.kind", "type": "string", "value": "producer"},
                {"key": "otel.library.name", "type": "string", "value": "vllm_lite.tracing"},
                {"key": "otel.library.version", "type": "string", "value": "0.1.0"},
                {"key": "error", "type": "bool", "value": True},
                {"key": "otel.status_code", "type": "string", "value": "ERROR"},
                {"key": "otel.status_description", "type": "string", "value": "it broke"},
            ],
            "logs": [
                {
                    "timestamp": 7,
                    "fields": [
                        {"key": "event", "type": "string", "value": "put"},
                        {"key": "tokens", "type": "int64", "value": 1},
                    ],
                }
            ],
            "processID": "p1",
            "warnings": None,
        }
    ]
    assert trace["processes"]["p1"]["serviceName"] == "vllm-lite.engine-core"
    assert {tag["key"]: tag["value"] for tag in trace["processes"]["p1"]["tags"]} == {
        "service.namespace": "vllm-lite",
        "host.name": "host",
        "service.instance.id": "host:2:engine-core",
        "process.pid": 2,
    }


def test_a_whole_run_by_trace(canned: Run, tmp_path: Path) -> None:
    spans = list(run_spans(canned))
    path = tmp_path / "run.json"
    assert write_jaeger_json(spans, path, {}) == len(spans)
    data = json.loads(path.read_text(encoding="utf-8"))["data"]
    assert len(data) == len({span.trace_id for span in spans}) == 13
    assert sum(len(trace["spans"]) for trace in data) == len(spans)
    for trace in data:
        assert {span["traceID"] for span in trace["spans"]} == {trace["traceID"]}
        assert {span["processID"] for span in trace["spans"]} == trace["processes"].keys()
        assert all(isinstance(span["startTime"], int) and span["duration"] >= 0 for span in trace["spans"])
        parents = [span["references"][0] for span in trace["spans"] if span["references"]]
        assert all(first["refType"] == "CHILD_OF" for first in parents if first["traceID"] == trace["traceID"])
    begins = [min(span["startTime"] for span in trace["spans"]) for trace in data]
    assert begins == sorted(begins)
