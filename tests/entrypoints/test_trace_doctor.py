from __future__ import annotations

import pytest

from vllm_lite.entrypoints.cli import trace_doctor
from vllm_lite.entrypoints.cli.main import main
from vllm_lite.tracing.exporter.doctor import Diagnosis

Out = pytest.CaptureFixture[str]


def test_a_span_that_arrived(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    asked = []

    def examine(endpoint: str | None) -> Diagnosis:
        asked.append(endpoint)
        return Diagnosis("http://localhost:4317", "grpc", [(True, "something listens"), (True, "it took a span")])

    monkeypatch.setattr(trace_doctor, "examine", examine)
    assert main(["trace", "doctor", "--otlp-traces-endpoint", "localhost:4317"]) == 0
    assert main(["trace", "doctor"]) == 0
    assert asked == ["localhost:4317", None]
    lines = capsys.readouterr().out.splitlines()[:3]
    assert lines[0].startswith("DOCTOR  http://localhost:4317  grpc  ---")
    assert lines[1:] == ["well  something listens", "well  it took a span"]


def test_one_that_did_not(capsys: Out) -> None:
    assert main(["trace", "doctor", "--otlp-traces-endpoint", "http://127.0.0.1:1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "well  sending is switched on"
    assert lines[2].startswith("ill   nothing takes a connection at 127.0.0.1, port 1 (")
    assert lines[3] == "do    start the collector, or correct the port (usually 4317 for grpc, 4318 for http/protobuf)"
    assert len(lines) == 4


def test_what_is_refused_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    assert main(["trace", "doctor"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("vllm-lite: OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json'; use 'grpc' or 'http/protobuf'")
    assert said.count("\n") == 1
