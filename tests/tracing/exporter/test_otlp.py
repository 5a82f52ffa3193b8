from __future__ import annotations

import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode

from tests.tracing import make
from tests.tracing.receiver import GRPC, HTTP, Received, attributes, receiver
from vllm_lite.tracing.exporter.otlp import Converter, make_exporter
from vllm_lite.tracing.exporter.settings import read_settings
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.spans import Event, Kind, Link, Span, run_spans

SPAN = Span(
    make.core(),
    "a" * 32,
    "b" * 16,
    "c" * 16,
    "x",
    Kind.CONSUMER,
    100,
    200,
    attributes={"text": "t", "list": ["a"]},
    events=[Event("e", 150, {"n": 1})],
    links=[Link("d" * 32, "e" * 16, {"k": 2})],
    error="it broke",
    tracestate="vendor=1",
    remote_parent=True,
    dropped_attributes=1,
    dropped_events=2,
    dropped_links=3,
)


def test_a_span_becomes_what_the_sdk_knows() -> None:
    span = Converter({"OTEL_SERVICE_NAME": "me"}).convert(SPAN)
    context, parent = span.get_span_context(), span.parent
    assert context is not None
    assert parent is not None
    assert (f"{context.trace_id:032x}", f"{context.span_id:016x}", context.trace_state.to_header()) == (
        "a" * 32,
        "b" * 16,
        "vendor=1",
    )
    assert (f"{parent.span_id:016x}", parent.is_remote) == ("c" * 16, True)
    assert (span.name, span.kind, span.start_time, span.end_time) == ("x", SpanKind.CONSUMER, 100, 200)
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "it broke")
    assert (span.dropped_attributes, span.dropped_events, span.dropped_links) == (1, 2, 3)
    assert [(event.name, event.timestamp) for event in span.events] == [("e", 150)]
    assert span.resource.attributes["service.name"] == "me.engine-core"
    assert span.resource.attributes["telemetry.sdk.language"] == "python"


def test_one_resource_for_each_process(canned: Run) -> None:
    converter = Converter({})
    resources = {id(converter.convert(span).resource) for span in run_spans(canned)}
    assert len(resources) == 3


def exporter(protocol: str, received: Received, monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> SpanExporter:
    """An exporter whose variables are the process's, as the official classes read them."""
    for name, value in {**env, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": protocol}.items():
        monkeypatch.setenv(name, value)
    import os

    return make_exporter(read_settings(os.environ, f"127.0.0.1:{received.port}"))


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_the_official_exporters_deliver(protocol: str, compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"OTEL_EXPORTER_OTLP_COMPRESSION": compression, "OTEL_EXPORTER_OTLP_HEADERS": "x-key=secret,x-other=1"}
    with receiver(protocol) as received:
        official = exporter(protocol, received, monkeypatch, env)
        assert official.export([Converter({}).convert(SPAN)]) is SpanExportResult.SUCCESS
        official.shutdown()
    [span] = received.spans
    assert (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()) == ("a" * 32, "b" * 16, "c" * 16)
    assert (span.dropped_attributes_count, span.dropped_events_count, span.dropped_links_count) == (1, 2, 3)
    assert attributes(span) == {"text": "t", "list": ["a"]}
    assert attributes(span.links[0]) == {"k": 2}
    headers = received.headers[0]
    assert (headers["x-key"], headers["x-other"]) == ("secret", "1")
    named = headers.get("content-encoding") or headers.get("grpc-internal-encoding-request")
    if protocol == HTTP:
        assert named == (None if compression == "none" else "gzip")


def test_deflate_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver(HTTP) as received:
        official = exporter(HTTP, received, monkeypatch, {"OTEL_EXPORTER_OTLP_COMPRESSION": "deflate"})
        assert official.export([Converter({}).convert(SPAN)]) is SpanExportResult.SUCCESS
        official.shutdown()
    assert received.headers[0]["content-encoding"] == "deflate"


def test_tls_is_used_where_the_endpoint_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain-text collector cannot answer a TLS client: that it gets nothing shows that TLS was spoken."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    with receiver(GRPC) as received:
        official = make_exporter(read_settings({}, f"https://127.0.0.1:{received.port}"))
        assert official.export([Converter({}).convert(SPAN)]) is SpanExportResult.FAILURE
        official.shutdown()
    assert received.spans == []
