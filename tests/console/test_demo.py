from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vllm_lite.console.demo import canned_run
from vllm_lite.tracing.stations import STATIONS


@pytest.mark.parametrize(
    ("view", "shown"),
    [
        ("mailroom", "MAILROOM  9 bags"),
        ("timeline", "REQUEST C  cleo"),
        ("slowest", "SLOWEST  3 of 3 requests"),
        ("totals", "TOTALS  3 requests"),
        ("diff", "DIFF  B over A"),
        ("top", "TOP  a canned run"),
        ("bag", "BAG 3  3 letters"),
        ("banner", "ENGINE CORE  pid 4002"),
        ("live", "36 tokens in 36 letters"),
    ],
)
def test_every_view_has_a_demo(view: str, shown: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"vllm_lite.console.{view}"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert shown in done.stdout
    assert done.stderr == ""
    assert done.stdout.isascii()
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_the_canned_run_passes_every_station() -> None:
    run = canned_run()
    assert len(run.requests) == 3
    assert len(STATIONS) == 9
    assert canned_run(engine_dies=True).deaths
