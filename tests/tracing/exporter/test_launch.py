from __future__ import annotations

import os
import subprocess
import sys
import unittest.mock
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tests.tracing import make
from tests.tracing.receiver import GRPC, receiver
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.exporter.launch import KEEP_FREED, ExporterProcess, check_environment
from vllm_lite.tracing.process import is_alive
from vllm_lite.tracing.recorder import Recorder


def test_started_followed_and_let_go(run_dir: Path) -> None:
    recorder = Recorder(run_dir, "frontend", "loop")
    with receiver(GRPC) as received:
        exporter = ExporterProcess(run_dir, f"127.0.0.1:{received.port}")
        assert os.getsid(exporter._child.pid) == exporter._child.pid != os.getsid(0)
        recorder.append(make.accept())
        recorder.append(make.close())
        recorder.close()
        assert exporter.close() == 0
    assert len(received.spans) == 1
    assert not run_dir.exists()


def test_what_the_user_asks_of_glibc_comes_last(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    with unittest.mock.patch.object(subprocess, "Popen", wraps=subprocess.Popen) as popen:
        exporter = ExporterProcess(run_dir, "127.0.0.1:1")
    assert exporter.close() == 0
    assert popen.call_args.kwargs["env"]["GLIBC_TUNABLES"] == f"{KEEP_FREED}:glibc.malloc.check=1"


def test_one_that_hangs_is_killed(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LITE_TRACE_FLUSH_S", "0")
    monkeypatch.setattr("vllm_lite.tracing.exporter.launch.EXIT_MARGIN_S", 0.0)
    exporter = ExporterProcess(run_dir, "127.0.0.1:1", keep=True)
    assert exporter.close() in (0, -9)
    assert not is_alive(exporter._child.pid)


PARENT = """
import sys, time
from pathlib import Path
from vllm_lite.tracing.exporter.launch import ExporterProcess
print(ExporterProcess(Path(sys.argv[1]), sys.argv[2])._child.pid, flush=True)
time.sleep(60)
"""


def test_it_flushes_when_its_parent_is_killed(run_dir: Path) -> None:
    recorder = Recorder(run_dir, "frontend", "loop")
    with receiver(GRPC) as received:
        command = [sys.executable, "-c", PARENT, str(run_dir), f"127.0.0.1:{received.port}"]
        parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        recorder.append(make.accept())
        recorder.append(make.close())
        recorder.close()
        parent.kill()
        parent.communicate()
        received.wait_for(lambda: len(received.spans) == 1)
        descriptor = os.pidfd_open(pid) if is_alive(pid) else None
        if descriptor is not None:
            import select

            assert select.select([descriptor], [], [], 10)[0]
            os.close(descriptor)
    assert not is_alive(pid)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "many"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_RESOURCE_ATTRIBUTES", "nothing"),
    ],
)
def test_every_variable_is_checked_before_anything_starts(
    name: str, value: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(VLLMValidationError, match=name):
        ExporterProcess(run_dir, None)


def test_checking_imports_neither_grpc_nor_the_sdk() -> None:
    code = (
        "import sys; from vllm_lite.tracing.exporter.launch import check_environment; check_environment(None, {}); "
        "print([name for name in ('grpc', 'opentelemetry', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert check_environment(None, {}).flush_s > 0


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_t8_a_missing_package_is_told_at_the_start(protocol: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setattr("vllm_lite.tracing.exporter.launch.metadata.distribution", missing)
    with pytest.raises(VLLMValidationError, match="needs the package opentelemetry-exporter-otlp-proto-"):
        ExporterProcess(run_dir, "127.0.0.1:1")


def missing(name: str) -> None:
    raise PackageNotFoundError(name)
