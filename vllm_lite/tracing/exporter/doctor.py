"""Sends one span to a collector, says what came of it, and what to change where it did not arrive.

Process: `vllm-lite trace doctor`. Knows: settings, sockets, what the official exporters say of an answer. Does not know: runs.
Mirrors: nothing in vLLM.
"""

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from vllm_lite.tracing.context import new_span_id, new_trace_id
from vllm_lite.tracing.exporter.launch import check_environment
from vllm_lite.tracing.exporter.settings import GRPC, HTTP, PORTS, Settings
from vllm_lite.tracing.process import Process
from vllm_lite.tracing.sampler import Sampler
from vllm_lite.tracing.spans import Kind, Span

PROBE_S = 2.0
# An OTLP request over HTTP that holds no span.
PROBE = (
    "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/x-protobuf\r\n"
    "Content-Length: 0\r\nConnection: close\r\n\r\n"
)
SETTINGS_FRAME = b"\4"  # type of the first HTTP/2 frame, at byte 3
# What an answer shows, and the remedy; the first that is found counts.
REMEDIES = {
    r"sends one elsewhere": "name the place it sends one to, https:// perhaps",
    r"no answer of OTLP's": "another program answers there: correct the port, or the path (it is /v1/traces mostly)",
    r"\b401\b|UNAUTHENTICATED|\b403\b|PERMISSION_DENIED": "set OTEL_EXPORTER_OTLP_HEADERS to what the collector wants to be "
    "asked with, such as authorization=Bearer%20KEY",
    r"\b404\b|\b405\b|UNIMPLEMENTED": "it takes no traces there: check the path (HTTP collectors take them at /v1/traces)",
    r"\b413\b|RESOURCE_EXHAUSTED": "it takes no requests of that size: lower OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    r"\b400\b|\b415\b|INVALID_ARGUMENT": "it does not understand OTLP protobuf: is this the port for OTLP?",
    r"\b429\b|\b50[234]\b|Service Unavailable|Too Many Requests": "it is there but takes nothing now: look at its own log",
    r"WRONG_VERSION": "it speaks no TLS: write http:// before the endpoint",
    r"certificate|CERTIFICATE": "its certificate is not trusted: OTEL_EXPORTER_OTLP_CERTIFICATE names its authority's file",
    r"SSL|TLS|[Hh]andshake": "the two cannot agree on TLS: should there be https:// or http:// before the endpoint?",
    r"DEADLINE_EXCEEDED|timeout|timed out": "it takes the connection but does not answer: a firewall, another program at that "
    "port, or a slow collector (OTEL_EXPORTER_OTLP_TIMEOUT allows more time)",
}


@dataclass
class Diagnosis:
    """Each thing that was looked at, and whether it was well; then what to do."""

    endpoint: str
    protocol: str
    looks: list[tuple[bool, str]] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)

    @property
    def arrived(self) -> bool:
        """The collector took the span."""
        return all(well for well, _ in self.looks)

    def look(self, well: bool, sentence: str, remedy: str = "") -> None:
        """Note one look; `remedy` is for one that was not well."""
        self.looks.append((well, sentence))
        if not well:
            self.remedies.append(remedy)


def examine(endpoint: str | None = None, environ: Mapping[str, str] | None = None) -> Diagnosis:
    """Try it. Raises VLLMValidationError for a variable or an endpoint that is refused before anything is sent."""
    env = os.environ if environ is None else environ
    settings = check_environment(endpoint, env)
    found = Diagnosis(settings.endpoint, settings.protocol)
    found.look(settings.enabled, "sending is switched on", "unset OTEL_SDK_DISABLED, and set OTEL_TRACES_EXPORTER to otlp")
    if not Sampler(env).decide(None, "doctor").sampled:
        found.remedies.append("OTEL_TRACES_SAMPLER takes no request, or few: use parentbased_always_on to see every one")
    if settings.enabled and (first_line := _reach(settings, found)) is not None:
        _send(settings, env, found, first_line)
    return found


def _reach(settings: Settings, found: Diagnosis) -> str | None:
    """Name, port, and the language that is spoken there; returns the first line of an HTTP answer, None where all ends here."""
    url = urlsplit(settings.endpoint)
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    answer = b""
    try:
        with socket.create_connection((host, port), PROBE_S) as probe:
            found.look(True, f"something listens at {host}, port {port}")
            if url.scheme == "http":
                probe.sendall(PROBE.format(path=url.path or "/", host=host).encode())
                with contextlib.suppress(TimeoutError):
                    answer = probe.recv(256)
    except (socket.gaierror, UnicodeError) as error:  # not found, or no name at all
        found.look(False, f"{host} is no host that is known here ({error})", "correct the host's name in the endpoint")
        return None
    except OSError as error:
        ports = ", ".join(f"{number} for {name}" for name, number in PORTS.items())
        remedy = f"start the collector, or correct the port (usually {ports})"
        found.look(False, f"nothing takes a connection at {host}, port {port} ({error})", remedy)
        return None
    spoken = HTTP if answer.startswith(b"HTTP/1.") else GRPC if answer[3:4] == SETTINGS_FRAME else settings.protocol
    if spoken != settings.protocol:
        remedy = f"set OTEL_EXPORTER_OTLP_PROTOCOL={spoken}, or use the port for {settings.protocol}"
        found.look(False, f"it speaks {spoken}, and {settings.protocol} was asked for", remedy)
        return None
    return answer.partition(b"\r\n")[0].decode("ascii", "replace") if spoken == HTTP else ""


def _send(settings: Settings, environ: Mapping[str, str], found: Diagnosis, first_line: str) -> None:
    from vllm_lite.tracing.exporter.official import Collector

    now = time.time_ns()
    process = Process("doctor", os.getpid(), socket.gethostname(), "")
    span = Span(process, new_trace_id(), new_span_id(), None, "vllm-lite trace doctor", Kind.INTERNAL, now - 1000, now)
    collector, answers = Collector(settings, environ), list[bool]()
    sending = threading.Thread(target=lambda: answers.append(collector.export([span])), daemon=True)
    sending.start()
    sending.join(settings.timeout_s + PROBE_S)  # over HTTP, who answers a byte at a time would hold the exporter for ever
    if answers == [True]:
        found.look(True, f"it took a span over {settings.protocol}; look for trace {span.trace_id}")
        return
    late = ["timed out"] if sending.is_alive() else []
    answer = " / ".join(filter(None, (first_line, *collector.errors, *late))) or "no answer"
    remedy = next(
        (to_do for pattern, to_do in REMEDIES.items() if re.search(pattern, answer)), "look at the collector's own log"
    )
    found.look(False, f"it did not take the span: {answer}", remedy)
