from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.tracing.receiver import GRPC, receiver
from vllm_lite.entrypoints.cli import trace_export
from vllm_lite.entrypoints.cli.main import main
from vllm_lite.entrypoints.cli.trace_export import HELP
from vllm_lite.tracing.canned import write_canned_run
from vllm_lite.tracing.export import FORMATS
from vllm_lite.tracing.exporter.doctor import Diagnosis

Out = pytest.CaptureFixture[str]


pytestmark = pytest.mark.usefixtures("otel_logger")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_canned_run(tmp_path_factory.mktemp("canned") / "run"))


def test_every_format_has_an_option() -> None:
    assert set(HELP) == set(FORMATS)


def test_files_for_other_tools(run: str, tmp_path: Path, capsys: Out) -> None:
    files = {name: tmp_path / f"run.{name}" for name in FORMATS}
    options = [str(word) for name, path in files.items() for word in (f"--{name}", path)]
    assert main(["trace", "export", run, *options]) == 0
    assert capsys.readouterr().out.splitlines() == [f"158 spans in {path}" for path in files.values()]
    assert json.loads(files["jaeger"].read_text())["data"]
    assert json.loads(files["perfetto"].read_text())["traceEvents"]
    assert json.loads(files["otlp"].read_text())["resourceSpans"]


def test_a_file_stands_for_the_run(run: str, tmp_path: Path, capsys: Out) -> None:
    lines, jaeger = str(tmp_path / "run.jsonl.gz"), str(tmp_path / "run.json")
    assert main(["trace", "export", run, "--otlp", lines]) == 0
    assert main(["trace", "export", lines, "--jaeger", jaeger]) == 0
    assert capsys.readouterr().out == f"158 spans in {lines}\n158 spans in {jaeger}\n"


def test_a_page_and_a_picture_of_the_views(run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    monkeypatch.setenv("NO_COLOR", "1")  # meant for the terminal
    page, picture = tmp_path / "run.html", tmp_path / "run.svg"
    assert main(["trace", "export", run, "--html", str(page), "--svg", str(picture)]) == 0
    assert capsys.readouterr().out == f"a page in {page}\na picture in {picture}\n"
    for path in (page, picture):
        text = path.read_text()
        assert all(title in text for title in ("MAILROOM", "REQUEST", "TOTALS"))
        assert "#4f9fef" in text
        assert "url(" not in text.replace("url(#", "")
    ElementTree.parse(picture)
    text = page.read_text()
    assert re.findall("<details open><summary>(.*?)</summary><pre>", text) == ["mailroom", "request", "totals"]
    assert f"<title>vllm-lite trace show {run}</title>" in text
    assert text.count("TOTALS") == picture.read_text().count("TOTALS") == 1


def test_it_is_sent_to_a_collector(run: str, capsys: Out) -> None:
    with receiver(GRPC) as received:
        assert main(["trace", "export", run, "--otlp-traces-endpoint", f"127.0.0.1:{received.port}"]) == 0
    assert len(received.spans) == 158
    assert capsys.readouterr().out == f"158 spans sent to http://127.0.0.1:{received.port}\n"


def test_a_collector_that_is_not_there(run: str, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    assert main(["trace", "export", run, "--otlp-traces-endpoint", "127.0.0.1:1"]) == 1
    said = capsys.readouterr()
    assert said.out == "0 spans sent to http://127.0.0.1:1\n"
    assert said.err.startswith("vllm-lite: 158 spans did not arrive (")
    assert said.err.endswith("`vllm-lite trace doctor` says why\n")
    assert said.err.count("\n") == 1


def test_what_cannot_be_done_is_one_line(run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    target, other = str(tmp_path / "x"), tmp_path / "other.json"
    other.write_text("[]")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    for argv, said in (
        ([run], "give one of --html, "),
        ([run, "--otlp-traces-endpoint", "127.0.0.1:1"], "--otlp-traces-endpoint must be absent where OTEL_SDK_DISABLED"),
        ([run, "--otlp-traces-endpoint", "ftp://x"], "otlp_traces_endpoint is 'ftp://x'; use host:port"),
        ([str(other), "--jaeger", target], "DIR must be a run directory, or a file of OTLP JSON lines ("),
        ([str(tmp_path / "nothing"), "--jaeger", target], f"{tmp_path / 'nothing'} is no folder; `vllm-lite "),
        ([str(tmp_path), "--html", target], f"{tmp_path} holds no spools"),
        ([run, "--html", str(tmp_path)], "--html must be a file that can be written here (Is a directory); got "),
        ([run, "--otlp", str(tmp_path / "no" / "x")], "--otlp must be a file that can be written here (No such file or "),
        ([run, "--otlp", target, "--html", target], "--html must be another file than --otlp is; got "),
        ([run, "--jaeger", target, "--perfetto", f"{tmp_path}/./x"], "--perfetto must be another file than --jaeger is; got "),
        ([run, "--svg", str(tmp_path / "no" / "x")], "--svg must be a file that can be written here (No such file or "),
    ):
        assert main(["trace", "export", *argv]) == 2
        text = capsys.readouterr().err
        assert text.startswith(f"vllm-lite: {said}")
        assert text.count("\n") == 1
    assert not Path(target).exists()


def test_a_span_that_arrived(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    asked = []

    def examine(endpoint: str | None) -> Diagnosis:
        asked.append(endpoint)
        return Diagnosis("http://localhost:4317", "grpc", [(True, "something listens"), (True, "it took a span")])

    monkeypatch.setattr(trace_export, "examine", examine)
    assert main(["trace", "doctor", "--otlp-traces-endpoint", "localhost:4317"]) == 0
    assert main(["trace", "doctor"]) == 0
    assert asked == ["localhost:4317", None]
    lines = capsys.readouterr().out.splitlines()[:3]
    assert lines[0].startswith("DOCTOR  http://localhost:4317  grpc  ---")
    assert lines[1:] == ["well  something listens", "well  it took a span"]


def test_one_that_did_not(capsys: Out) -> None:
    assert main(["trace", "doctor", "--otlp-traces-endpoint", "http://127.0.0.1:1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "well  sending is switched on"
    assert lines[2].startswith("ill   nothing takes a connection at 127.0.0.1, port 1 (")
    assert lines[3] == "do    start the collector, or correct the port (usually 4317 for grpc, 4318 for http/protobuf)"
    assert len(lines) == 4


def test_what_is_refused_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    assert main(["trace", "doctor"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("vllm-lite: OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json'; use 'grpc' or 'http/protobuf'")
    assert said.count("\n") == 1
