from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from tests.tracing.receiver import GRPC, HTTP, receiver
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.export import FORMATS, Sent, read_spans, send, write_files
from vllm_lite.tracing.exporter.settings import read_settings
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.spans import run_spans

pytestmark = pytest.mark.usefixtures("otel_logger")


def test_every_format_of_one_run(canned_dir: Path, tmp_path: Path) -> None:
    targets = {name: tmp_path / name for name in FORMATS}
    assert write_files(canned_dir, targets, {}) == dict.fromkeys(FORMATS, 158)
    assert len((tmp_path / "otlp").read_text().splitlines()) == 1
    assert len(json.loads((tmp_path / "jaeger").read_text())["data"]) == 13
    assert json.loads((tmp_path / "perfetto").read_text())["traceEvents"]


@pytest.mark.parametrize("name", ["a.otlp.jsonl", "a.otlp.jsonl.gz"])
def test_a_file_stands_for_the_run(canned_dir: Path, canned: Run, tmp_path: Path, name: str) -> None:
    write_files(canned_dir, {"otlp": tmp_path / name}, {})
    assert {s.span_id for s in read_spans(tmp_path / name, {})} == {s.span_id for s in run_spans(canned)}
    first, second = tmp_path / "from_run.json", tmp_path / "from_file.json"
    write_files(canned_dir, {"jaeger": first}, {})
    write_files(tmp_path / name, {"jaeger": second}, {})
    assert jaeger_spans(first) == jaeger_spans(second)


def jaeger_spans(path: Path) -> dict[str, dict[str, object]]:
    """By id, each with its service instead of that one's number in the file."""
    return {
        span["spanID"]: span | {"processID": trace["processes"][span["processID"]]["serviceName"]}
        for trace in json.loads(path.read_text())["data"]
        for span in trace["spans"]
    }


def test_limits_are_honoured(canned_dir: Path) -> None:
    spans = list(read_spans(canned_dir, {"OTEL_SPAN_EVENT_COUNT_LIMIT": "2"}))
    assert max(len(span.events) for span in spans) == 2
    assert sum(span.dropped_events for span in spans) > 0


def test_a_file_is_not_written_over_itself(canned: Run, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_files(canned, {"otlp": path}, {})
    before = path.read_bytes()
    with pytest.raises(VLLMValidationError, match="the file that is read; use another"):
        write_files(path, {"otlp": path}, {})
    assert path.read_bytes() == before


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read_spans(tmp_path / "nothing", {}))
    with pytest.raises(FileNotFoundError, match="holds no spools"):
        list(read_spans(tmp_path, {}))


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_a_run_is_sent_after_all(canned_dir: Path, canned: Run, protocol: str) -> None:
    env = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "50"}
    with receiver(protocol) as received:
        sent = send(canned_dir, read_settings(env, f"127.0.0.1:{received.port}"), env)
    assert sent == Sent(158, 0, "")
    assert received.span_ids == {span.span_id for span in run_spans(canned)}
    assert len(received.requests) == 4


def test_a_collector_that_is_not_there(canned_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    exporter = logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter")
    monkeypatch.setattr(exporter, "filters", [])  # another test may have made it say the same a moment ago
    sent = send(canned_dir, read_settings({}, "127.0.0.1:1"), {})
    assert (sent.arrived, sent.left) == (0, 158)
    assert "127.0.0.1:1" in sent.answer
