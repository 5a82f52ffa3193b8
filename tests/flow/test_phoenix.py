"""Arize Phoenix, a tracing backend that is not ours, gets every span of a run and draws it. An optional job: `make phoenix`.

PHOENIX_PYTHON names a Python that has arize-phoenix; PHOENIX_PICTURE a PNG to write, where the picture is wanted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.entrypoints.command import vllm_lite
from tests.tracing.exporter.test_rotel import free_port
from tests.tracing.receiver import GRPC, HTTP
from vllm_lite.tracing.journey import load_run
from vllm_lite.tracing.spans import Span, run_spans

PYTHON = os.environ.get("PHOENIX_PYTHON")
PICTURE = os.environ.get("PHOENIX_PICTURE")
CHROMIUM = shutil.which("chromium")
TOY = ("--model", "tiny", "--distributed-executor-backend", "toy")
AS_ON_THE_PAGE = ("List the days of the week.", "--stop", "Wednesday", "--level", "2")
QUIET = {
    "PHOENIX_TELEMETRY_ENABLED": "false",
    "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
    "PHOENIX_ENABLE_MCP_SERVER": "false",
}

pytestmark = pytest.mark.skipif(PYTHON is None, reason="PHOENIX_PYTHON names no Python that has arize-phoenix")


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Where a Phoenix of this test's own takes spans, by protocol. HTTP is its API and its pages too."""
    assert PYTHON is not None
    folder, ports = tmp_path_factory.mktemp("phoenix"), {GRPC: free_port(), HTTP: free_port()}
    ours = {"PHOENIX_HOST": "127.0.0.1", "PHOENIX_PORT": str(ports[HTTP]), "PHOENIX_GRPC_PORT": str(ports[GRPC])}
    env = {**os.environ, **QUIET, **ours, "PHOENIX_WORKING_DIR": str(folder)}
    with open(folder / "log", "w", encoding="utf-8") as log:
        server = subprocess.Popen([PYTHON, "-m", "phoenix.server.main", "serve"], env=env, stdout=log, stderr=log)
    try:
        found = {protocol: f"http://127.0.0.1:{port}" for protocol, port in ports.items()}
        wait_for(found[HTTP], server, folder / "log")
        yield found
    finally:
        server.terminate()
        server.wait(30)


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 100
    while True:
        try:
            urllib.request.urlopen(f"{url}/healthz", timeout=5).close()
        except OSError:
            assert server.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.2)
        else:
            return


def recorded(folder: Path, endpoint: str, *options: str) -> list[Span]:
    """The spans of a run across real processes, as its spools tell them; it was sent to `endpoint` while it ran."""
    done = vllm_lite("trace", "run", *options, "--out", folder, "--otlp-traces-endpoint", endpoint)
    assert done.returncode == 0, done.stderr
    return list(run_spans(load_run(folder)))


def stored(url: str) -> list[dict[str, Any]]:
    """All spans that Phoenix gives out."""
    spans, cursor = [], ""
    while cursor is not None:
        with urllib.request.urlopen(f"{url}/v1/projects/default/spans?limit=1000{cursor and '&cursor='}{cursor}") as answer:
            page = json.load(answer)
        spans += page["data"]
        cursor = page["next_cursor"]
    return spans


def arrived(url: str, expected: Counter[str]) -> Counter[str]:
    """How many spans Phoenix has of each expected trace, once there are enough or time is up: it stores them when it can."""
    deadline = time.monotonic() + 60
    while True:
        found = Counter(span["context"]["trace_id"] for span in stored(url) if span["context"]["trace_id"] in expected)
        if found.total() >= expected.total() or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_every_span_arrives(endpoints: dict[str, str], protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    spans = recorded(tmp_path / "run", endpoints[protocol], *TOY, "--requests", "3", "--max-tokens", "12")
    expected = Counter(span.trace_id for span in spans)
    assert expected.total() > 100
    assert arrived(endpoints[HTTP], expected) == expected


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_a_request_is_drawn(endpoints: dict[str, str], tmp_path: Path) -> None:
    spans = recorded(tmp_path / "run", endpoints[GRPC], *AS_ON_THE_PAGE)
    root, *_ = (span for span in spans if span.name.startswith("text_completion"))
    assert {"abort engine_core", "process engine_core.abort"} <= {span.name for span in spans}
    expected = Counter(span.trace_id for span in spans)
    assert arrived(endpoints[HTTP], expected) == expected
    picture = Path(PICTURE or tmp_path / "phoenix.png").absolute()
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    shot = [f"--user-data-dir={tmp_path / 'browser'}", "--window-size=1400,800", f"--screenshot={picture}"]
    page = f"{endpoints[HTTP]}/redirects/traces/{root.trace_id}"
    subprocess.run([CHROMIUM, *flags, "--virtual-time-budget=15000", *shot, page], check=True, capture_output=True, timeout=90)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 30_000, "an empty page"
