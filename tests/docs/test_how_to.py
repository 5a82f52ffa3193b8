"""The commands of the how-to pages do what the pages say, with a collector of the tests' own in the backend's place.

The toy model answers, since what is tried here is the way of the spans.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.architecture.source import ROOT
from tests.entrypoints.command import vllm_lite
from tests.tracing.receiver import GRPC, HTTP, receiver

PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
BY_HAND = {"docker", "python3", "phoenix/bin/pip", "phoenix/bin/phoenix"}  # what starts the backends
TOY = ["--model", "tiny", "--distributed-executor-backend", "toy"]


def commands(page: Path) -> list[tuple[dict[str, str], list[str]]]:
    """Each indented line of a page, as the variables that it sets and its words."""
    found = []
    for line in re.findall(r"^ {4}(\S.*)$", page.read_text(), re.MULTILINE):
        words = shlex.split(line)
        number = next(i for i, word in enumerate(words) if not re.match(r"[A-Z_]+=", word))
        found.append((dict(word.split("=", 1) for word in words[:number]), words[number:]))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_works(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with receiver(GRPC) as grpc, receiver(HTTP) as http:
        places = {GRPC: grpc, HTTP: http}
        for env, shown in commands(page):
            if shown[0] in BY_HAND:
                continue
            place = places[env.get("OTEL_EXPORTER_OTLP_PROTOCOL", GRPC)]
            words = [re.sub(r"localhost:\d+", f"localhost:{place.port}", word) for word in shown]
            before = len(place.spans)
            with monkeypatch.context() as patch:
                for name, value in env.items():
                    patch.setenv(name, value)
                done = vllm_lite(*words[1:], *(TOY if words[2] == "run" else []))
            assert (words[0], done.returncode) == ("vllm-lite", 0), done.stderr
            assert (len(place.spans) > before) == ("--otlp-traces-endpoint" in words)
    assert grpc.service_names >= {"vllm-lite.frontend", "vllm-lite.engine-core"}
    assert "vllm-lite.frontend" in http.service_names
    for file in re.findall(r"--jaeger (\S+)", page.read_text()):
        assert json.loads((tmp_path / file).read_text())["data"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_what_was_tried(page: Path) -> None:
    assert "\n## What was tried\n" in page.read_text()


def test_jaeger_listens_on_this_machine_only() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())
    assert services.keys() == {"services"}
    (jaeger,) = services["services"].values()
    assert jaeger.keys() == {"image", "ports"}
    assert re.fullmatch(r"jaegertracing/jaeger:2\.\d+\.\d+", jaeger["image"]), "version 2, and one that stays what it is"
    assert jaeger["ports"] == [f"127.0.0.1:{port}:{port}" for port in (16686, 4317, 4318)]
