from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
import pytest

from tests.tracing.receiver import GRPC, HTTP, receiver
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.exporter import doctor
from vllm_lite.tracing.exporter.doctor import Diagnosis, examine


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Short waits; what sending does to OpenTelemetry's loggers is undone, so that no message counts as said already."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    monkeypatch.setattr(doctor, "PROBE_S", 0.5)
    logger = logging.getLogger("opentelemetry")
    handlers, propagate = list(logger.handlers), logger.propagate
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("opentelemetry")]
    filters = {other: list(other.filters) for other in loggers}
    for other in loggers:
        other.filters.clear()
    yield
    logger.handlers, logger.propagate = handlers, propagate
    for other, own in filters.items():
        other.filters[:] = own


@contextmanager
def http_answering(code: int, page: bytes = b"", kind: str = "text/html") -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(code)
            if code == 308:
                self.send_header("location", "https://elsewhere/v1/traces")
            self.send_header("content-length", str(len(page)))
            self.send_header("content-type", kind)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def grpc_answering(status: str) -> Iterator[str]:
    def export(body: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(getattr(grpc.StatusCode, status), "because")

    handler = grpc.method_handlers_generic_handler(
        "opentelemetry.proto.collector.trace.v1.TraceService", {"Export": grpc.unary_unary_rpc_method_handler(export)}
    )
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def asked(endpoint: str, protocol: str, **env: str) -> Diagnosis:
    return examine(endpoint, {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, **env})


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_a_collector_that_takes_it(protocol: str) -> None:
    with receiver(protocol) as received:
        found = asked(f"127.0.0.1:{received.port}", protocol)
    assert found.arrived
    assert found.remedies == []
    assert [span.name for span in received.spans] == ["vllm-lite trace doctor"]
    assert received.spans[0].trace_id.hex() in found.looks[-1][1]
    assert received.service_names == {"vllm-lite.doctor"}


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_nothing_listens(protocol: str) -> None:
    found = asked("127.0.0.1:1", protocol)
    assert not found.arrived
    assert found.remedies == ["start the collector, or correct the port (usually 4317 for grpc, 4318 for http/protobuf)"]


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b"])
def test_no_such_host(host: str) -> None:
    found = asked(f"{host}:4317", GRPC)
    assert found.remedies == ["correct the host's name in the endpoint"]


@pytest.mark.parametrize(("asks", "speaks"), [(GRPC, HTTP), (HTTP, GRPC)])
def test_the_other_protocol(asks: str, speaks: str) -> None:
    with receiver(speaks) as received:
        found = asked(f"127.0.0.1:{received.port}", asks)
    assert found.looks[-1] == (False, f"it speaks {speaks}, and {asks} was asked for")
    assert found.remedies == [f"set OTEL_EXPORTER_OTLP_PROTOCOL={speaks}, or use the port for {asks}"]
    assert received.spans == []


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_a_black_hole(protocol: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hole:
        found = asked(f"127.0.0.1:{hole.getsockname()[1]}", protocol)
    assert [well for well, _ in found.looks] == [True, True, False]
    assert "does not answer" in found.remedies[0]


@pytest.mark.parametrize(
    ("code", "word"),
    [
        (308, "https://"),
        (401, "OTEL_EXPORTER_OTLP_HEADERS"),
        (404, "/v1/traces"),
        (413, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"),
        (400, "OTLP"),
        (503, "log"),
    ],
)
def test_what_an_http_collector_answers(code: int, word: str) -> None:
    with http_answering(code) as endpoint:
        found = asked(endpoint, HTTP)
    assert not found.arrived
    assert word in found.remedies[0]


def test_a_web_page_is_no_yes() -> None:
    with http_answering(200, b"<html>Welcome</html>") as endpoint:
        found = asked(endpoint, HTTP)
    assert not found.arrived
    assert found.looks[-1][1].endswith("200: it answers text/html, which is no answer of OTLP's")
    assert found.remedies[0].startswith("another program answers there")


@pytest.mark.parametrize(
    ("page", "kind"), [(b"", "text/html"), (b"ok", "text/plain"), (b"{}", "application/json"), (b"", "application/x-protobuf")]
)
def test_what_collectors_say_is_a_yes(page: bytes, kind: str) -> None:
    with http_answering(200, page, kind) as endpoint:
        assert asked(endpoint, HTTP).arrived


@contextmanager
def dripping() -> Iterator[str]:
    """Answers at once, but one letter at a time and without an end."""
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nheader: ")
            while not over.wait(0.02):
                connection.sendall(b"x")

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threads.append(threading.Thread(target=drip, args=(server.accept()[0],)))
                threads[-1].start()

    threads = list[threading.Thread]()
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepting = threading.Thread(target=serve)
        accepting.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)
            for thread in (accepting, *threads):
                thread.join()


def test_an_answer_without_an_end() -> None:
    with dripping() as endpoint:
        found = asked(endpoint, HTTP, OTEL_EXPORTER_OTLP_TIMEOUT="0.2")
    assert found.looks[-1] == (False, "it did not take the span: HTTP/1.1 200 OK / timed out")
    assert "does not answer" in found.remedies[0]


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ("UNAUTHENTICATED", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("UNIMPLEMENTED", "/v1/traces"),
        ("RESOURCE_EXHAUSTED", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"),
        ("INTERNAL", "log"),
    ],
)
def test_what_a_grpc_collector_answers(status: str, word: str) -> None:
    with grpc_answering(status) as endpoint:
        found = asked(endpoint, GRPC)
    assert status in found.looks[-1][1]
    assert word in found.remedies[0]


def test_tls_where_the_collector_speaks_none() -> None:
    with receiver(GRPC) as received:
        found = asked(f"https://127.0.0.1:{received.port}", GRPC)
    assert found.remedies == ["it speaks no TLS: write http:// before the endpoint"]


@pytest.mark.parametrize("variable", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_sending_is_switched_off(variable: dict[str, str]) -> None:
    found = asked("127.0.0.1:1", GRPC, **variable)
    assert not found.arrived
    assert found.remedies[0].startswith("unset OTEL_SDK_DISABLED")


def test_a_sampler_that_takes_nothing_is_told_though_the_span_arrives() -> None:
    with receiver(GRPC) as received:
        found = asked(f"127.0.0.1:{received.port}", GRPC, OTEL_TRACES_SAMPLER="always_off")
    assert found.arrived
    assert "OTEL_TRACES_SAMPLER" in found.remedies[0]


def test_what_is_refused_is_refused() -> None:
    with pytest.raises(VLLMValidationError, match="otlp_traces_endpoint"):
        examine("unix:///x", {})
    with pytest.raises(VLLMValidationError, match="OTEL_RESOURCE_ATTRIBUTES"):
        examine("127.0.0.1:1", {"OTEL_RESOURCE_ATTRIBUTES": "team"})
    with pytest.raises(VLLMValidationError, match="OTEL_SPAN_EVENT_COUNT_LIMIT"):
        examine("127.0.0.1:1", {"OTEL_SPAN_EVENT_COUNT_LIMIT": "many"})
