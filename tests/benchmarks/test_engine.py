"""The engine's benchmark runs to its end on the tiny model, and judges what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import engine
from tests.architecture.source import ROOT


def test_both_engines_answer_every_case(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "engine.py"), "--model", "tiny", "--dtypes", "float32", "--force"]
    command += ["--cases", "2", "mixed", "--runs", "1", "--json", str(tmp_path / "found.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # float32 has no bar without vLLM
    found = json.loads((tmp_path / "found.json").read_text())
    rows = found["dtypes"]["float32"]
    assert [(row["case"], row["engine"]) for row in rows] == [
        ("2", "vllm_lite"),
        ("2", "generate"),
        ("mixed", "vllm_lite"),
        ("mixed", "generate"),
    ]
    assert all(row["tokens_per_s"] > 0 and row["cpu_ms_per_token"] >= 0 and len(row["runs"]) == 1 for row in rows)
    assert "ours / theirs" in done.stdout


def test_prompts_differ_between_runs_and_cases_and_agree_between_engines() -> None:
    batches = [engine.make_batch(case, run, 320) for case in ("8", "32", "mixed") for run in (1, 2)]
    assert [len(batch) for batch in batches] == [8, 8, 32, 32, 24, 24]
    prompts = [tuple(prompt) for batch in batches for prompt, _ in batch]
    assert len({prompt[:8] for prompt in prompts}) == len(prompts)
    assert {(len(prompt), count) for prompt, count in batches[0]} == {(64, 32)}
    assert all(10 <= len(prompt) <= 100 and 5 <= count <= 60 for prompt, count in batches[-1])
    assert engine.make_batch("mixed", 2, 320) == batches[-1]


@pytest.mark.parametrize(("dtype", "bars"), [("bfloat16", [0.8, 1.4, None, 1.8]), ("float32", [0.9, None, None, None])])
def test_ratios_and_bars(dtype: str, bars: list[float | None]) -> None:
    rows = [
        {"case": case, "engine": kind, "tokens_per_s": speed, "cpu_ms_per_token": cpu}
        for case in ("8", "mixed")
        for kind, speed, cpu in [("vllm_lite", 90.0, 5.0), ("vllm", 100.0, 4.0), ("generate", 50.0, 10.0)]
    ]
    engine.compare(rows, dtype)
    others = [row for row in rows if row["engine"] != "vllm_lite"]
    assert [row["ratio"] for row in others] == [0.9, 1.8] * 2
    assert [row["cpu_ratio"] for row in others] == [0.8, 2.0] * 2
    assert [row["bar"] for row in others] == bars
    assert "ratio" not in rows[0]


def test_a_busy_machine_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (3.2, 0.0, 0.0))
    monkeypatch.setattr(sys, "argv", ["engine.py"])
    assert engine.main() == 2
    assert "the load average is 3.2" in capsys.readouterr().out
