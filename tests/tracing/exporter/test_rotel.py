"""A collector that is not ours takes our spans and passes them on."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import rotel

from tests.tracing.receiver import GRPC, HTTP, attributes, receiver
from vllm_lite.tracing.export import Sent, send
from vllm_lite.tracing.exporter.doctor import examine
from vllm_lite.tracing.exporter.settings import read_settings
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.spans import run_spans


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


@contextmanager
def collector(onwards: int) -> Iterator[dict[str, str]]:
    """Its endpoints by protocol; it sends on to a gRPC receiver at port `onwards`."""
    endpoints = {protocol: f"127.0.0.1:{free_port()}" for protocol in (GRPC, HTTP)}
    command = [
        str(Path(rotel.__file__).parent / "rotel-agent"),
        "start",
        *("--otlp-grpc-endpoint", endpoints[GRPC], "--otlp-http-endpoint", endpoints[HTTP]),
        *("--exporter", "otlp", "--otlp-exporter-endpoint", f"http://127.0.0.1:{onwards}", "--disable-batching"),
    ]
    agent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for endpoint in endpoints.values():
            wait_for(endpoint)
        yield endpoints
    finally:
        agent.kill()
        agent.wait()


def wait_for(endpoint: str) -> None:
    host, _, port = endpoint.partition(":")
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection((host, int(port)), 1.0).close()
        except OSError:
            assert time.monotonic() < deadline, f"rotel does not listen at {endpoint}"
            time.sleep(0.02)
        else:
            return


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_a_run_goes_through_whole(canned_dir: Path, canned: Run, protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}
    expected = {span.span_id: span for span in run_spans(canned)}
    with receiver(GRPC) as received, collector(received.port) as endpoints:
        assert examine(endpoints[protocol], env).arrived
        assert send(canned_dir, read_settings(env, endpoints[protocol]), env) == Sent(len(expected), 0, "")
        received.wait_for(lambda: len(received.spans) > len(expected))
    arrived = {span.span_id.hex(): span for span in received.spans if span.name != "vllm-lite trace doctor"}
    assert arrived.keys() == expected.keys()
    for span_id, span in arrived.items():
        ours = expected[span_id]
        assert (span.name, span.start_time_unix_nano, span.end_time_unix_nano) == (ours.name, ours.start, ours.end)
        assert (len(span.events), len(span.links)) == (len(ours.events), len(ours.links))
        assert attributes(span).keys() == ours.attributes.keys()
