"""A collector for tests: takes OTLP over gRPC or HTTP on a free port and keeps what it got."""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

GRPC, HTTP = "grpc", "http/protobuf"


class Received:
    """What arrived. `refuse` is how many requests are turned away (503) before the first is taken."""

    def __init__(self, refuse: int = 0) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.refuse = refuse
        self.port = 0
        self.arrived = threading.Condition()

    def take(self, request: ExportTraceServiceRequest, headers: dict[str, str], path: str) -> bool:
        with self.arrived:
            if self.refuse > 0:
                self.refuse -= 1
                return False
            self.requests.append(request)
            self.headers.append(headers)
            self.paths.append(path)
            self.arrived.notify_all()
            return True

    def wait_for(self, enough: Callable[[], bool], timeout: float = 30.0) -> None:
        with self.arrived:
            assert self.arrived.wait_for(enough, timeout), f"only {len(self.spans)} spans came"

    @property
    def resources(self) -> list[Any]:
        return [resource for request in self.requests for resource in request.resource_spans]

    @property
    def spans(self) -> list[Any]:
        return [span for resource in self.resources for scope in resource.scope_spans for span in scope.spans]

    @property
    def span_ids(self) -> set[str]:
        return {span.span_id.hex() for span in self.spans}

    @property
    def service_names(self) -> set[str]:
        return {attributes(resource.resource)["service.name"] for resource in self.resources}


def attributes(holder: Any) -> dict[str, Any]:
    """The attributes of a resource, span, event or link message as plain values."""
    return {item.key: _value(item.value) for item in holder.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextmanager
def receiver(protocol: str, refuse: int = 0, port: int = 0) -> Iterator[Received]:
    """A running collector; `received.port` is where it listens."""
    with (grpc_receiver if protocol == GRPC else http_receiver)(Received(refuse), port) as received:
        yield received


@contextmanager
def grpc_receiver(received: Received, port: int) -> Iterator[Received]:
    class Servicer(TraceServiceServicer):
        def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:
            if not received.take(request, dict(context.invocation_metadata()), ""):
                context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(Servicer(), server)
    received.port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield received
    finally:
        server.stop(0).wait()


@contextmanager
def http_receiver(received: Received, port: int) -> Iterator[Received]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            encoding = self.headers.get("content-encoding", "")
            body = {"gzip": gzip.decompress, "deflate": zlib.decompress}.get(encoding, bytes)(body)
            headers = {name.lower(): value for name, value in self.headers.items()}
            taken = received.take(ExportTraceServiceRequest.FromString(body), headers, self.path)
            self.send_response(200 if taken else 503)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    received.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
