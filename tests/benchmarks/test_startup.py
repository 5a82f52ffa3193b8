"""A cold start is timed to its first token; ratio and import time are held against the bars."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import first_token, startup
from vllm_lite.config.model_files import resolve_model


def test_a_first_token_is_timed() -> None:
    seconds, line = startup.first_token_seconds(sys.executable, "vllm_lite", resolve_model("tiny"))
    assert seconds > 0
    assert line.removeprefix("first token ").isdigit()


def test_a_child_without_a_token_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="vllm_lite printed no token; run it by hand: "):
        startup.first_token_seconds(sys.executable, "vllm_lite", tmp_path)


def test_a_child_by_hand_is_told_how_to_start_it() -> None:
    done = subprocess.run([sys.executable, first_token.__file__, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"{first_token.__doc__}\n")


@pytest.mark.parametrize(
    ("seconds", "imports", "code", "last"),
    [
        ({"vllm_lite": 3.5, "vllm": 10.0}, 1.9, 0, "ratio 0.35 (bar 0.35)"),
        ({"vllm_lite": 3.6, "vllm": 10.0}, 1.9, 1, "ratio 0.36 (bar 0.35)"),
        ({"vllm_lite": 1.0, "vllm": 10.0}, 2.1, 1, "ratio 0.10 (bar 0.35)"),
        ({"vllm_lite": 1.0}, 2.1, 1, "front end imports in 2.10 s (bar 2.0 s)"),
    ],
)
def test_bars(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seconds: dict[str, float],
    imports: float,
    code: int,
    last: str,
) -> None:
    monkeypatch.setattr(startup, "resolve_model", Path)
    monkeypatch.setattr(startup, "first_token_seconds", lambda _, package, __: (seconds[package], "first token 7"))
    monkeypatch.setattr(startup, "import_seconds", lambda: imports)
    other = ["--vllm-python", "python"] if "vllm" in seconds else []
    monkeypatch.setattr(sys, "argv", ["startup.py", "--runs", "3", *other])
    assert startup.main() == code
    assert capsys.readouterr().out.splitlines()[-1] == last
