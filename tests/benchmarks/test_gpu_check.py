"""The GPU's script runs to its end on a CPU, and no section's failure is another's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from benchmarks import gpu_check, gpu_sections
from tests.architecture.source import ROOT

SCRIPT = ROOT / "benchmarks" / "gpu_check.py"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.mark.parametrize(
    ("section", "found"),
    [
        ("machine", {"gpu": "none"}),
        ("kernels", {}),
        ("tokens", {"models": {"llama torch_sdpa default": "equal"}}),
        ("steps", {}),
        ("attention", {}),
        ("end_to_end", {}),
        ("trace", {"with_device_time": 0}),
        ("compiled", {}),
    ],
)
def test_every_section_runs_dry(section: str, found: dict[str, Any], work: Path) -> None:
    result = getattr(gpu_sections, section)(gpu_sections.DRY, work)
    assert json.loads(json.dumps(result)) == result
    assert {name: result[name] for name in found} == found
    for what, _, bar, met in result.get("bars", []):
        assert met or bar in (3, 0.5, 0.7), what  # what a CPU cannot reach


def test_the_sections_are_those_with_a_limit() -> None:
    assert all(callable(getattr(gpu_sections, name)) for name in gpu_check.LIMITS)


def run_script(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT.parent)


def test_one_section_by_the_command_with_carried_wheels(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    facts = {"METADATA": "Metadata-Version: 2.1\nName: opentelemetry-sdk\nVersion: 9.9\n", "RECORD": ""}
    facts["WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(wheels / "opentelemetry_sdk-9.9-py3-none-any.whl", "w") as wheel:
        for name, text in facts.items():
            wheel.writestr(f"opentelemetry_sdk-9.9.dist-info/{name}", text)
    done = run_script("--dry-run", "--sections", "machine", "--out", tmp_path / "out", "--wheels", wheels)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "out" / "gpu_check.json").read_text())
    assert list(results) == ["machine"]
    assert results["machine"]["opentelemetry-sdk"] == "9.9"
    assert "flop_per_s" in (tmp_path / "out" / "gpu_check.txt").read_text()
    assert "flop_per_s" in done.stdout


def test_a_section_that_raises_leaves_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sections, "machine", lambda *_: 1 / 0)
    gpu_check.run_section("machine", dry=True, work=tmp_path)
    assert json.loads((tmp_path / "machine.json").read_text())["error"] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("program", "limit", "error"),
    [
        ("import sys; sys.exit(3)", 60, "exit code 3 and no result"),
        ("import os; os.abort()", 60, "exit code -6 and no result"),
        ("import time; time.sleep(600)", 0.5, "not done within 0 s"),
    ],
)
def test_a_section_that_dies_or_hangs_is_reported(program: str, limit: float, error: str, tmp_path: Path) -> None:
    found = gpu_check.run_child([sys.executable, "-c", program], dict(os.environ), limit, tmp_path / "none.json")
    assert found["error"] == error


def test_an_unknown_section_is_refused(tmp_path: Path) -> None:
    done = run_script("--sections", "machine,magic", "--out", tmp_path)
    assert done.returncode == 2
    assert "no section is called 'magic'; there are machine, kernels" in done.stderr
