from __future__ import annotations

import logging
import os

import pytest

from tests.tracing import make
from tests.tracing.receiver import GRPC, HTTP, Received, attributes, receiver
from vllm_lite.tracing.exporter import official
from vllm_lite.tracing.exporter.official import Collector
from vllm_lite.tracing.exporter.settings import read_settings
from vllm_lite.tracing.spans import Event, Kind, Link, Span

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

pytestmark = pytest.mark.usefixtures("otel_logger")


def exporter(protocol: str, received: Received, monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> Collector:
    """An exporter whose variables are the process's, as the official classes read them."""
    for name, value in {**env, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": protocol}.items():
        monkeypatch.setenv(name, value)
    return Collector(read_settings(os.environ, f"127.0.0.1:{received.port}"), os.environ)


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_the_official_exporters_deliver(protocol: str, compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"OTEL_EXPORTER_OTLP_COMPRESSION": compression, "OTEL_EXPORTER_OTLP_HEADERS": "x-key=secret,x-other=1"}
    with receiver(protocol) as received:
        assert exporter(protocol, received, monkeypatch, env).export([SPAN])
    [span] = received.spans
    assert (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()) == ("a" * 32, "b" * 16, "c" * 16)
    assert (span.dropped_attributes_count, span.dropped_events_count, span.dropped_links_count) == (1, 2, 3)
    assert attributes(span) == {"text": "t", "list": ["a"]}
    assert attributes(span.links[0]) == {"k": 2}
    headers = received.headers[0]
    assert (headers["x-key"], headers["x-other"]) == ("secret", "1")
    if protocol == HTTP:
        assert headers.get("content-encoding") == (None if compression == "none" else "gzip")


def test_deflate_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver(HTTP) as received:
        assert exporter(HTTP, received, monkeypatch, {"OTEL_EXPORTER_OTLP_COMPRESSION": "deflate"}).export([SPAN])
    assert received.headers[0]["content-encoding"] == "deflate"


def test_tls_is_used_where_the_endpoint_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain-text collector cannot answer a TLS client: that it gets nothing shows that TLS was spoken."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    with receiver(GRPC) as received:
        assert not Collector(read_settings({}, f"https://127.0.0.1:{received.port}"), {}).export([SPAN])
    assert received.spans == []


class Trying(Collector):
    """One whose first `refuse` tries fail."""

    def __init__(self, refuse: int) -> None:
        super().__init__(read_settings({}, "127.0.0.1:1"), {})
        self.refuse, self.tries = refuse, 0

    def export(self, spans: list[Span]) -> bool:
        self.tries += 1
        return self.tries > self.refuse


def test_a_collector_that_comes_back_gets_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(official, "RETRY_S", (0.0,) * 7)
    collector = Trying(refuse=7)
    assert collector.deliver([SPAN])
    assert collector.tries == 8
    assert capsys.readouterr().err == "vllm-lite exporter: the collector takes no spans; nothing is lost, trying on\n"


def test_a_batch_that_fails_for_too_long_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 300 < sum(official.RETRY_S) < 310
    monkeypatch.setattr(official, "RETRY_S", (0.0,) * 7)
    collector = Trying(refuse=8)
    assert not collector.deliver([SPAN])
    assert collector.tries == 8


def test_what_the_exporters_log_is_kept() -> None:
    collector = Trying(refuse=0)
    logging.getLogger("opentelemetry.anywhere").warning("Transient error %s", "UNAVAILABLE")
    assert collector.errors == ["Transient error UNAVAILABLE"]
