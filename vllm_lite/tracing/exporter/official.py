"""The official OTLP exporters, given requests that are encoded already.

Process: exporter, `vllm-lite trace export` and `doctor`. Knows: settings, both exporters. Does not know: spools or journeys.
They read headers, timeout and TLS files from the environment themselves, compress and try again as OpenTelemetry does.
Mirrors: vllm/tracing/otel.py (get_span_exporter)
"""

import importlib
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from vllm_lite.tracing.exporter.otlp import Encoder
from vllm_lite.tracing.exporter.settings import GRPC, Settings
from vllm_lite.tracing.spans import Span

# Pauses between tries; after the last a batch is let go and counted: it may be the batch's own fault.
RETRY_S = (0.2, 0.5, 1.0, 2.0, *[5.0] * 60)
SESSION_PROVIDER = "OTEL_PYTHON_EXPORTER_OTLP_HTTP"  # a variable that begins so may name a package that makes the session
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


class Collector:
    """What `settings` name, reached by the official exporter for its protocol."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self._log = _Log()
        self._encoder, self._exporter = Encoder(environ), _make_exporter(settings)

    @property
    def errors(self) -> list[str]:
        """What went wrong, the newest last."""
        return list(self._log.texts)

    def export(self, spans: list[Span]) -> bool:
        """Send them. False where they did not arrive."""
        encoded: Any = EncodedSpans(self._encoder.request(spans), len(spans))
        return self._exporter.export(encoded) is SpanExportResult.SUCCESS

    def deliver(self, spans: list[Span]) -> bool:
        """Send them again and again until they arrive. False after some minutes."""
        if self.export(spans):
            return True
        print("vllm-lite exporter: the collector takes no spans; nothing is lost, trying on", file=sys.stderr)
        for pause in RETRY_S:
            time.sleep(pause)
            if self.export(spans):
                return True
        return False


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


class _Log(logging.Handler):
    """Keeps what the official exporters log instead of printing it: they repeat themselves at every try."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: deque[str] = deque(maxlen=8)
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def _make_exporter(settings: Settings) -> SpanExporter:
    """Both modules turn spans into a message by a function of one name: the one place where theirs can be taken out."""
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
            options["session"].hooks["response"].append(_refuse_no_answer)
    exporter: SpanExporter = module.OTLPSpanExporter(endpoint=settings.endpoint, **options)
    return exporter


def _refuse_no_answer(response: Any, **_: object) -> None:
    """The exporter takes a redirect for a yes, and a web page too: the spans would be lost without a word."""
    told = ""
    if response.is_redirect:
        told = f"it sends one elsewhere, to {response.headers['location']}"
    elif response.ok and response.headers.get("content-type", "").startswith("text/html") and response.content:
        told = f"it answers {response.headers['content-type']}, which is no answer of OTLP's"
    if told:
        response.close()
        raise importlib.import_module("requests").RequestException(f"{response.status_code}: {told}")
