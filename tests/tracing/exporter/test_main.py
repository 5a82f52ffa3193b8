from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from tests.tracing import make
from tests.tracing.receiver import GRPC, HTTP, attributes, receiver
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.canned import write_canned_run
from vllm_lite.tracing.exporter.__main__ import Exporter
from vllm_lite.tracing.exporter.official import Collector
from vllm_lite.tracing.exporter.settings import read_settings
from vllm_lite.tracing.journey import load_run
from vllm_lite.tracing.recorder import Recorder
from vllm_lite.tracing.spans import Span, run_spans
from vllm_lite.tracing.spans.environment import Limits
from vllm_lite.tracing.spool import SpoolWriter

COMMAND = [sys.executable, "-m", "vllm_lite.tracing.exporter"]
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "20"}


def environment(**variables: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return own | QUICK | variables


def export(run_dir: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Export a run that is over."""
    command = [*COMMAND, str(run_dir), *options]
    return subprocess.run(command, env=environment(**variables), capture_output=True, text=True, timeout=60, check=False)


class Running:
    """An exporter that follows; `let_go` tells it that its parent is gone and gives the seconds until its end."""

    def __init__(self, run_dir: Path, options: tuple[str, ...], variables: dict[str, str]) -> None:
        read_end, self._write_end = os.pipe()
        command = [*COMMAND, str(run_dir), "--death-fd", str(read_end), *options]
        env = environment(**variables)
        self.child = subprocess.Popen(command, env=env, pass_fds=(read_end,), stderr=subprocess.PIPE, text=True)
        os.close(read_end)
        self.stderr = ""

    def let_go(self) -> float:
        started = time.monotonic()
        os.close(self._write_end)
        _, self.stderr = self.child.communicate(timeout=60)
        return time.monotonic() - started


@contextmanager
def running(run_dir: Path, *options: str, **variables: str) -> Iterator[Running]:
    exporter = Running(run_dir, options, variables)
    try:
        yield exporter
    finally:
        if exporter.child.poll() is None:
            exporter.child.kill()
            exporter.child.communicate()


@pytest.fixture
def canned_copy(tmp_path: Path) -> Path:
    return write_canned_run(tmp_path / "run")


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_a_run_arrives_whole_and_its_spools_go(canned_copy: Path, protocol: str) -> None:
    expected = {span.span_id for span in run_spans(load_run(canned_copy))}
    with receiver(protocol) as received:
        endpoint = f"127.0.0.1:{received.port}"
        done = export(canned_copy, "--endpoint", endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol, OTEL_SERVICE_NAME="mine")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(received.spans) == len(expected)
    assert received.span_ids == expected
    assert received.service_names == {"mine", "mine.engine-core", "mine.worker"}
    assert sorted(path.name for path in canned_copy.iterdir()) == ["client.jsonl", "control"]


def test_keep_keeps_the_spools(canned_copy: Path) -> None:
    with receiver(HTTP) as received:
        export(canned_copy, "--endpoint", f"127.0.0.1:{received.port}", "--keep", OTEL_EXPORTER_OTLP_PROTOCOL=HTTP)
    assert len(received.spans) == 158
    assert len(list(canned_copy.glob("*.vlt"))) == 5


@pytest.mark.parametrize("variable", [{"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_SDK_DISABLED": "true"}])
def test_switched_off_it_sends_nothing_and_removes_nothing(canned_copy: Path, variable: dict[str, str]) -> None:
    with receiver(GRPC) as received:
        done = export(canned_copy, "--endpoint", f"127.0.0.1:{received.port}", **variable)
    assert (done.returncode, received.spans) == (0, [])
    assert len(list(canned_copy.glob("*.vlt"))) == 5


def test_limits_and_resource_attributes_are_honoured(canned_copy: Path) -> None:
    with receiver(GRPC) as received:
        export(
            canned_copy,
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{received.port}",
            OTEL_SPAN_EVENT_COUNT_LIMIT="4",
            OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test",
        )
    [ann] = [s for s in received.spans if attributes(s).get("vllm_lite.request.id") == "ann"]
    assert [attributes(event)["index"] for event in ann.events] == [0, 1, 5, 6]
    assert ann.dropped_events_count == 3
    assert {attributes(r.resource)["deployment.environment.name"] for r in received.resources} == {"test"}


def test_settings_that_are_refused_end_it_at_once(canned_copy: Path) -> None:
    done = export(canned_copy, OTEL_EXPORTER_OTLP_PROTOCOL="http/json")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "vllm-lite exporter: OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json'; use 'grpc' or 'http/protobuf'"
    )


def test_spans_leave_while_the_engine_runs(run_dir: Path) -> None:
    recorder = Recorder(run_dir, "frontend", "loop")
    with receiver(GRPC) as received, running(run_dir, "--endpoint", f"127.0.0.1:{received.port}") as exporter:
        recorder.append(make.accept(level=1))
        recorder.append(make.close(outcome="invalid"))
        recorder.flush()
        received.wait_for(lambda: len(received.spans) == 1)
        recorder.append(make.accept(2, level=1))
        recorder.close()
        assert exporter.let_go() < 2.0
        assert {attributes(span)["vllm_lite.request.id"] for span in received.spans} == {"r1", "r2"}
    assert exporter.child.returncode == 0
    assert not run_dir.exists()


def test_segments_go_while_the_engine_runs(run_dir: Path) -> None:
    recorder = Recorder(run_dir, "frontend", "loop", SpoolWriter(run_dir, "frontend", "loop", segment_bytes=400))
    with receiver(GRPC) as received, running(run_dir, "--endpoint", f"127.0.0.1:{received.port}"):
        for req in range(20):
            recorder.append(make.accept(req, level=1))
            recorder.append(make.close(req))
            recorder.flush()
        received.wait_for(lambda: len(received.spans) == 20)
        finished = sorted(run_dir.glob("*.vlt"), key=lambda path: (len(path.name), path.name))[:-1]  # .10 comes after .9
        recorder.append(make.accept(20, level=1))
        recorder.append(make.close(20))
        recorder.flush()
        received.wait_for(lambda: len(received.spans) == 21)  # what was left to do after the others is done
        assert not any(path.exists() for path in finished)
    recorder.close()


def test_a_collector_that_recovers_gets_everything(canned_copy: Path) -> None:
    with receiver(HTTP, refuse=1) as received:
        endpoint = f"127.0.0.1:{received.port}"
        done = export(canned_copy, "--endpoint", endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=HTTP, VLLM_LITE_TRACE_FLUSH_S="30")
    assert done.returncode == 0
    assert len(received.span_ids) == len(received.spans) == 158


@pytest.fixture
def nobody() -> int:
    """A port that nobody listens at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture
def black_hole() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield int(listening.getsockname()[1])


@pytest.mark.parametrize("where", ["nobody", "black_hole"])
@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_a_bad_collector_delays_the_end_by_the_budget_at_most(
    canned_copy: Path, protocol: str, where: str, request: pytest.FixtureRequest
) -> None:
    endpoint = f"127.0.0.1:{request.getfixturevalue(where)}"
    variables = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "VLLM_LITE_TRACE_FLUSH_S": "0.8"}
    with running(canned_copy, "--endpoint", endpoint, **variables) as exporter:
        assert exporter.let_go() < 0.8 + 1.0  # the second is for the start of the process itself
    assert exporter.child.returncode == 0
    assert f"158 spans did not arrive at http://{endpoint}" in exporter.stderr
    again = exporter.stderr.strip().rpartition("this finishes the job: ")[2]
    assert again.startswith(f"vllm-lite trace export {canned_copy} --otlp-traces-endpoint http")
    assert len(list(canned_copy.glob("*.vlt"))) == 5


def test_ctrl_c_does_not_stop_it(run_dir: Path) -> None:
    recorder = Recorder(run_dir, "frontend", "loop")
    with receiver(GRPC) as received, running(run_dir, "--endpoint", f"127.0.0.1:{received.port}") as exporter:
        for req in (1, 2):
            recorder.append(make.accept(req, level=1))
            recorder.append(make.close(req))
            recorder.flush()
            received.wait_for(lambda: len(received.spans) == req)  # noqa: B023
            exporter.child.send_signal(signal.SIGINT)
        recorder.close()
        exporter.let_go()
    assert exporter.child.returncode == 0


def test_a_fault_of_its_own_is_told(run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(now: float, final: bool) -> None:
        raise OSError("no such disk")

    exporter = Exporter(run_dir, read_settings({"OTEL_BSP_SCHEDULE_DELAY": "0"}), Limits(), keep=False)
    monkeypatch.setattr(exporter._follower, "poll", broken)
    exporter.export()
    assert capsys.readouterr().err.startswith("vllm-lite exporter: cannot go on: OSError('no such disk')\n")
    assert run_dir.exists()


def test_spools_of_spans_that_were_given_up_stay(canned_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Refusing:
        errors = ("one", "two")
        sizes = list[int]()

        def deliver(self, spans: list[Span]) -> bool:
            self.sizes.append(len(spans))
            return len(self.sizes) != 2

    settings = read_settings({"OTEL_BSP_SCHEDULE_DELAY": "0", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "50"})
    exporter = Exporter(canned_copy, settings, Limits(), keep=False)
    exporter._collector = cast("Collector", Refusing())
    exporter.export()
    assert Refusing.sizes == [50, 50, 50, 8]
    told = "vllm-lite exporter: 50 spans did not arrive at http://localhost:4317, 108 did (two); the spools are kept"
    assert capsys.readouterr().err.startswith(told)
    assert len(list(canned_copy.glob("*.vlt"))) == 5


WRITER = """
import sys, time
from vllm_lite.tracing.recorder import Recorder
from vllm_lite.tracing.records import Phase
recorder = Recorder(sys.argv[1], "engine-core", "main")
recorder.append(Phase("load", 1, 2))
recorder.flush()
print("ready", flush=True)
time.sleep(60)
"""


def test_a_killed_engine_core_closes_its_requests_as_errors(run_dir: Path) -> None:
    """The record of an engine core that was killed in the middle of a request, exported after its parent went too."""
    front = Recorder(run_dir, "frontend", "loop")
    core = subprocess.Popen([sys.executable, "-c", WRITER, str(run_dir)], stdout=subprocess.PIPE, text=True)
    assert core.stdout is not None
    assert core.stdout.readline() == "ready\n"
    front.append(make.accept())
    front.append(rec.EngineDead(0, 50))
    front.append(make.close(outcome="engine_dead"))
    core.kill()
    core.communicate()
    front.close()
    with receiver(GRPC) as received:
        done = export(run_dir, "--endpoint", f"127.0.0.1:{received.port}")
    assert (done.returncode, done.stderr) == (0, "")
    errors = {span.name: attributes(span)["error.type"] for span in received.spans if span.status.code == 2}
    assert errors == {"text_completion m": "engine_dead", "engine_core.death": "engine_dead"}
