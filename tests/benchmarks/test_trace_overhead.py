"""The benchmark of tracing's cost runs to its end in each of its modes, and judges what it found."""

from __future__ import annotations

import sys

import pytest

from benchmarks import frontend, trace_overhead
from benchmarks.trace_overhead import Line, added
from vllm_lite.config.model_files import TINY_MODEL


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--requests", "4", "--steps", "30"], ["level 1, added per token", "level 3, added per token", "unsampled, added"]),
        (["--requests", "4", "--steps", "10", "--rate", "400"], ["level 1, added", "level 3, p99 lag of the loop, added"]),
        (["--batch", "2", "--model", "tiny"], ["level 3, tokens a second against off"]),
    ],
)
def test_every_mode_measures_its_bars(
    options: list[str], told: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["trace_overhead.py", "--rounds", "1", *options])
    monkeypatch.setattr(frontend, "DEFAULT_MODEL", TINY_MODEL)
    monkeypatch.setattr("os.sched_setaffinity", lambda *_: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    code, out = trace_overhead.main(), capsys.readouterr().out
    assert all(line in out for line in told)
    assert code == int("missed" in out)


def test_a_difference_of_blocks_is_that_of_neighbours() -> None:
    """Two blocks in each of three rounds; a round that something else has slowed down does not count."""
    off, level = [[1.0, 2.0], [9.0, 2.0], [1.0, 2.0]], [[1.5, 2.25], [5.0, 9.0], [1.5, 2.25]]
    assert added(level, off) == 0.375


@pytest.mark.parametrize(
    ("figure", "least", "missed"), [(1.0, False, False), (1.1, False, True), (1.0, True, False), (0.9, True, True)]
)
def test_a_bar_is_missed_beyond_it(figure: float, least: bool, missed: bool) -> None:
    assert Line("what", figure, 1.0, "us", least).missed is missed
