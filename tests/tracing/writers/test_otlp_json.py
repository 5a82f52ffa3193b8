from __future__ import annotations

import gzip
import json
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from msgspec.structs import replace
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tests.tracing import make
from tests.tracing.official import official_request
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.spans import Event, Kind, Link, Span, run_spans
from vllm_lite.tracing.writers import otlp_json
from vllm_lite.tracing.writers.otlp_json import otlp_request, read_otlp_json, write_otlp_json


def parse(line: str) -> TracesData:
    """A strict reading: an unknown field or a wrong type is an error. Ids are hex in OTLP, base64 in protobuf."""
    return json_format.Parse(json.dumps(_base64_ids(json.loads(line))), TracesData(), ignore_unknown_fields=False)


def _base64_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_base64_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    names = ("traceId", "spanId", "parentSpanId")
    return {
        k: json_format.base64.b64encode(bytes.fromhex(v)).decode() if k in names else _base64_ids(v) for k, v in value.items()
    }


def by_id(data: Any) -> dict[str, Any]:
    return {span.span_id.hex(): span for r in data.resource_spans for s in r.scope_spans for span in s.spans}


@pytest.mark.parametrize("name", ["run.otlp.jsonl", "run.otlp.jsonl.gz"])
def test_every_line_is_an_export_request(canned: Run, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_json, "LINE_SPANS", 50)
    spans = list(run_spans(canned))
    assert write_otlp_json(spans, tmp_path / name, {}) == len(spans) == 158
    raw = (tmp_path / name).read_bytes()
    lines = (gzip.decompress(raw) if name.endswith(".gz") else raw).decode().splitlines()
    assert len(lines) == 4
    ids = [span_id for line in lines for span_id in by_id(parse(line))]
    assert sorted(ids) == sorted(span.span_id for span in spans)


def test_it_says_what_the_official_encoder_says(canned: Run, dead: Run) -> None:
    for run in (canned, dead):
        spans = list(run_spans(run))
        ours = by_id(parse(json.dumps(otlp_request(spans, {}))))
        assert ours == by_id(official_request(spans, {}))


def test_every_kind_of_value() -> None:
    span = Span(
        make.core(),
        "a" * 32,
        "b" * 16,
        "c" * 16,
        "x",
        Kind.CLIENT,
        1_767_225_600_000_000_001,
        1_767_225_600_000_000_002,
        attributes={"s": "é", "b": False, "i": 1 << 60, "f": 0.5, "l": ["a", "b"], "n": [1, 2]},
        events=[Event("e", 7, {"zero": 0})],
        links=[Link("d" * 32, "e" * 16, {"k": "v"})],
        error="it broke",
        tracestate="a=1,b=2",
        dropped_events=3,
    )
    [parsed] = by_id(parse(json.dumps(otlp_request([span], {"OTEL_SERVICE_NAME": "me"})))).values()
    assert (parsed.start_time_unix_nano, parsed.end_time_unix_nano) == (span.start, span.end)
    assert (parsed.kind, parsed.status.code, parsed.status.message) == (3, 2, "it broke")
    assert (parsed.trace_state, parsed.dropped_events_count) == ("a=1,b=2", 3)
    values = {item.key: item.value for item in parsed.attributes}
    assert (values["s"].string_value, values["i"].int_value, values["f"].double_value) == ("é", 1 << 60, 0.5)
    assert values["b"].WhichOneof("value") == "bool_value"
    assert [item.string_value for item in values["l"].array_value.values] == ["a", "b"]
    assert [item.int_value for item in values["n"].array_value.values] == [1, 2]


ANYBODY = make.core()


def told(span: Span) -> Span:
    """The span but for who it is of."""
    return replace(span, process=ANYBODY, remote_parent=span.remote_parent and span.parent_span_id is not None)


@pytest.mark.parametrize("name", ["run.otlp.jsonl", "run.otlp.jsonl.gz"])
def test_what_was_written_reads_as_the_same_spans(canned: Run, dead: Run, tmp_path: Path, name: str) -> None:
    for run in (canned, dead):
        spans = list(run_spans(run))
        write_otlp_json(spans, tmp_path / name, {"OTEL_SERVICE_NAME": "mine"})
        again = list(read_otlp_json(tmp_path / name))
        assert sorted(map(told, again), key=attrgetter("span_id")) == sorted(map(told, spans), key=attrgetter("span_id"))
        assert {(s.process.role, s.process.pid, s.process.host) for s in again} == {
            (s.process.role, s.process.pid, s.process.host) for s in spans
        }
        write_otlp_json(again, tmp_path / f"again.{name}", {"OTEL_SERVICE_NAME": "somebody else"})
        assert resources(tmp_path / f"again.{name}") == resources(tmp_path / name)


def resources(path: Path) -> set[str]:
    raw = path.read_bytes()
    lines = (gzip.decompress(raw) if path.name.endswith(".gz") else raw).splitlines()
    return {json.dumps(part["resource"]) for line in lines for part in json.loads(line)["resourceSpans"]}


@pytest.mark.parametrize("more", [{}, {"kind": 0}])
def test_a_collectors_file_with_less_in_it(tmp_path: Path, more: dict[str, int]) -> None:
    span = {"traceId": "a" * 32, "spanId": "b" * 16, "name": "x", "startTimeUnixNano": "1", "endTimeUnixNano": 2, **more}
    (tmp_path / "f.jsonl").write_text("\n" + json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}) + "\n")
    [only] = read_otlp_json(tmp_path / "f.jsonl")
    assert (only.name, only.start, only.end, only.kind, only.process.role) == ("x", 1, 2, Kind.INTERNAL, "")


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"spans": []}', '{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x"}]}]}]}']
)
def test_a_line_that_is_something_else_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "f.jsonl").write_text(f'{{"resourceSpans": []}}\n{line}\n')
    with pytest.raises(ValueError, match="line 2, is no OTLP request"):
        list(read_otlp_json(tmp_path / "f.jsonl"))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"traceId": "ab"}, "'ab' is no id of 32 hex digits"),
        ({"spanId": "b" * 18}, "is no id of 16 hex digits"),
        ({"parentSpanId": "abcd"}, "'abcd' is no id of 16 hex digits"),
        ({"links": [{"traceId": "c" * 32, "spanId": ""}]}, "'' is no id of 16 hex digits"),
        ({"startTimeUnixNano": "-1"}, "'-1' is no time in nanoseconds since 1970"),
        ({"events": [{"name": "e", "timeUnixNano": str(1 << 64)}]}, "is no time in nanoseconds since 1970"),
    ],
)
def test_what_cannot_be_sent_is_told_when_it_is_read(tmp_path: Path, fields: dict[str, Any], told: str) -> None:
    span = {"traceId": "a" * 32, "spanId": "b" * 16, "name": "x", "startTimeUnixNano": "1", "endTimeUnixNano": 2, **fields}
    (tmp_path / "f.jsonl").write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}))
    with pytest.raises(ValueError, match=f"line 1, is no OTLP request: .*{told}"):
        list(read_otlp_json(tmp_path / "f.jsonl"))


def test_a_compressed_file_that_was_cut_short_is_told(canned: Run, tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl.gz"
    write_otlp_json(run_spans(canned), path, {})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"f.jsonl.gz is no whole gzip file: Compressed file ended"):
        list(read_otlp_json(path))
    path.write_bytes(b"plain")
    with pytest.raises(ValueError, match=r"f.jsonl.gz is no whole gzip file: Not a gzipped file"):
        list(read_otlp_json(path))
