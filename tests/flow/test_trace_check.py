"""The command, whole: a run under load with every habit a caller can have, then its records against what the callers saw."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from vllm_lite.tracing.journey.load import load_run

RUN = [
    *("--requests", "64", "--concurrency", "16", "--max-tokens", "200", "--ignore-eos", "--level", "3"),
    *("--distributed-executor-backend", "toy", "--slow-reader", "5"),
    *("--stop", "a", "--stop", "e", "--stop", "o", "--stop-requests", "3", "--abort-after", "20", "--abort-requests", "3"),
]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vllm_lite.entrypoints.cli.main", *arguments], capture_output=True, text=True, check=False
    )


def test_sixty_four_requests_add_up(tiny_model_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = command("trace", "run", "--model", str(tiny_model_path), *RUN, "--out", str(out))
    assert done.returncode == 0, done.stderr
    callers = [json.loads(line) for line in (out / "client.jsonl").read_text().splitlines()]
    assert sorted(caller["kind"] for caller in callers) == ["aborted"] * 3 + ["finished"] * 61
    assert sum(isinstance(caller["stop_reason"], str) for caller in callers) == 3
    closes = [request.close for request in load_run(out).requests]
    assert len(closes) == 64
    assert all(close is not None and close.puts == close.takes + close.staples + close.left for close in closes)
    assert sum(close.staples for close in closes if close is not None) > 0

    checked = command("trace", "check", str(out))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "rules hold" in checked.stdout

    shown = command("trace", "show", str(out))
    assert shown.returncode == 0, shown.stderr
    assert "MAILROOM" in shown.stdout


def test_a_callers_record_that_disagrees_is_found(tiny_model_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = ["trace", "run", "one", "two", "--distributed-executor-backend", "toy", "--ignore-eos", "--max-tokens", "20"]
    assert command(*run, "--model", str(tiny_model_path), "--out", str(out)).returncode == 0
    lines = (out / "client.jsonl").read_text().splitlines()
    forged = json.loads(lines[0])
    forged["token_ids"].pop()
    (out / "client.jsonl").write_text("\n".join([json.dumps(forged), *lines[1:]]))
    checked = command("trace", "check", str(out))
    assert checked.returncode == 1
    assert forged["request_id"] in checked.stdout
