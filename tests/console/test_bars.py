from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_lite.console.bars import TimeScale, split

MS = 1_000_000
intervals = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)).map(lambda pair: (min(pair), max(pair))), max_size=8)


def test_coverage_is_the_share_of_each_cells_time() -> None:
    scale = TimeScale(0, 100, 10)
    assert scale.coverage([(0, 10), (25, 40)]) == pytest.approx([1, 0, 0.5, 1, 0, 0, 0, 0, 0, 0], abs=1e-5)


def test_an_instant_shows_as_a_trace() -> None:
    scale = TimeScale(0, 100, 4)
    assert scale.strip([(60, 60)], " .:#") == "  . "


def test_what_lies_outside_the_scale_is_not_drawn() -> None:
    scale = TimeScale(100, 200, 4)
    assert scale.strip([(0, 99), (201, 300)], " .#") == "    "
    assert scale.strip([(0, 160)], " .#") == "##. "


@given(intervals, st.integers(1, 50))
def test_coverage_adds_up_to_the_time_covered(parts: list[tuple[int, int]], cells: int) -> None:
    shares = TimeScale(0, 1000, cells).coverage(parts)
    assert len(shares) == cells
    assert all(0 <= share <= 1 for share in shares)
    union = sum(any(t0 <= t < t1 for t0, t1 in parts) for t in range(1000))
    apart = sum(t1 - t0 for t0, t1 in parts)
    assert union - 1 <= sum(shares) * 1000 / cells + 1e-6 * len(parts) * 1000
    assert sum(shares) * 1000 / cells <= apart + 1e-3 * (1 + len(parts)) * 1000


@pytest.mark.parametrize(
    ("length", "cells", "labels", "columns"),
    [
        (100 * MS, 50, "0 ms      20        40        60        80", [0, 10, 20, 30, 40]),
        (1_500_000, 40, "0 us         500          1000", [0, 13, 26]),
        (30_000 * MS, 45, "0 s            10             20", [0, 15, 30]),
        (7, 12, "0 us", [0]),
    ],
)
def test_ticks_are_round_numbers_with_their_unit(length: int, cells: int, labels: str, columns: list[int]) -> None:
    assert TimeScale(5, 5 + length, cells).ticks() == (labels, columns)


@given(st.integers(10_000, 10**11), st.integers(10, 200))
def test_ticks_stay_on_the_scale_and_apart(length: int, cells: int) -> None:
    labels, columns = TimeScale(0, length, cells).ticks()
    assert len(labels) <= cells
    assert all(b - a >= 8 for a, b in itertools.pairwise(columns))
    assert all(column < cells for column in columns)


def test_a_bar_is_split_by_size_and_shows_every_part() -> None:
    assert split([1, 97, 1, 0, 1], 20) == [1, 17, 1, 0, 1]
    assert split([50, 50], 10) == [5, 5]
    assert split([0, 0], 10) == [0, 0]
    assert split([1, 9, 2], 2) == [0, 1, 1]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=6), st.integers(6, 60))
def test_a_split_bar_is_as_long_as_it_should_be(parts: list[int], cells: int) -> None:
    shares = split(parts, cells)
    assert sum(shares) == (cells if any(parts) else 0)
    assert all((share > 0) == (part > 0) for share, part in zip(shares, parts, strict=True))
