"""The official OTLP exporters, given requests that are encoded already.

Process: exporter, `vllm-lite trace export` and `doctor`. Knows: settings, both exporters. Does not know: spools or journeys.
They read headers, timeout and TLS files from the environment themselves, compress and try again as OpenTelemetry does.
Mirrors: vllm/tracing/otel.py (get_span_exporter)
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from vllm_lite.tracing.exporter.otlp import Encoder
from vllm_lite.tracing.exporter.sender import Export
from vllm_lite.tracing.exporter.settings import GRPC, Settings
from vllm_lite.tracing.spans import Span

SESSION_PROVIDER = "OTEL_PYTHON_EXPORTER_OTLP_HTTP"  # a variable that begins so may name a package that makes the session
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


class EncodedSpans:
    """What the exporters take for a sequence of spans, and then for the message made of it."""

    def __init__(self, body: bytes, count: int) -> None:
        self.body, self.count = body, count

    def __len__(self) -> int:
        return self.count

    def SerializePartialToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """The encoded request."""
        return self.body


class _Stub:
    """Stands for the generated client, which would take the message apart and put it together again."""

    def __init__(self, channel: Any) -> None:
        self.Export = channel.unary_unary(EXPORT, request_serializer=EncodedSpans.SerializePartialToString)


def connect(settings: Settings, environ: Mapping[str, str]) -> Export:
    """A function that sends spans with the official exporter for the protocol."""
    encoder, exporter = Encoder(environ), make_exporter(settings)

    def export(spans: list[Span]) -> bool:
        encoded: Any = EncodedSpans(encoder.request(spans), len(spans))
        return exporter.export(encoded) is SpanExportResult.SUCCESS

    return export


def make_exporter(settings: Settings) -> SpanExporter:
    """The exporter; what it is given to export is EncodedSpans.

    Both modules turn spans into a message by a function of this name: the one place where theirs can be taken out.
    """
    protocol = "grpc" if settings.protocol == GRPC else "http"
    module = importlib.import_module(f"opentelemetry.exporter.otlp.proto.{protocol}.trace_exporter")
    vars(module)["encode_spans"] = lambda encoded: encoded
    if settings.protocol == GRPC:
        vars(module)["TraceServiceStub"] = _Stub
        compression = importlib.import_module("grpc").Compression
        options = {
            "insecure": settings.endpoint.startswith("http://"),
            "compression": compression.Gzip if settings.compression == "gzip" else compression.NoCompression,
        }
    else:
        http = importlib.import_module("opentelemetry.exporter.otlp.proto.http")
        options = {"compression": http.Compression(settings.compression)}
        if not any(name.startswith(SESSION_PROVIDER) for name in os.environ):
            options["session"] = importlib.import_module("requests").Session()
            options["session"].hooks["response"].append(_refuse_redirect)
    exporter: SpanExporter = module.OTLPSpanExporter(endpoint=settings.endpoint, **options)
    return exporter


def _refuse_redirect(response: Any, **_: object) -> None:
    """The exporter follows no redirect, yet takes one for a yes: the spans would be lost without a word."""
    if response.is_redirect:
        response.close()
        told = f"{response.status_code}: it sends one elsewhere, to {response.headers['location']}"
        raise importlib.import_module("requests").RequestException(told)
