from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_lite.console import figures
from vllm_lite.console.figures import TimeScale, split

MS = 1_000_000
intervals = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)).map(lambda pair: (min(pair), max(pair))), max_size=8)


def test_times_have_fixed_decimals() -> None:
    assert [figures.ms(ns) for ns in (None, 0, 4_999, 15_523_000, 9_999_990_000, 1_041_200_000_000)] == [
        *("-", "0.00", "0.00", "15.52", "9,999.99", "1,041,200"),
    ]
    assert [figures.us(ns) for ns in (None, 1_499, 1_406_163_000)] == ["-", "1", "1,406,163"]


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 us"), (999_400, "999 us"), (1_000_000, "1.0 ms"), (999_949_999, "999.9 ms"), (2_340_000_000, "2.34 s")],
)
def test_a_time_in_a_sentence(ns: int, text: str) -> None:
    assert figures.span(ns) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 20, "3.0 MiB"), (5 << 30, "5.0 GiB")]
)
def test_a_size(size: int, text: str) -> None:
    assert figures.size(size) == text


def test_a_count_with_its_noun() -> None:
    assert figures.count(1, "letter") == "1 letter"
    assert figures.count(12_800, "letter") == "12,800 letters"
    assert figures.count(2, "caller's record", "callers' records") == "2 callers' records"


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


def test_a_bar_is_split_by_size_and_nothing_else() -> None:
    assert split([1, 97, 1, 0, 1], 20) == [0, 20, 0, 0, 0]
    assert split([2, 90, 4, 2, 2], 20) == [0, 18, 1, 1, 0]
    assert split([50, 50], 10) == [5, 5]
    assert split([0, 0], 10) == [0, 0]
    assert split([1, 9, 2], 2) == [0, 2, 0]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=6), st.integers(6, 60))
def test_a_split_bar_is_as_long_as_it_should_be(parts: list[int], cells: int) -> None:
    shares = split(parts, cells)
    assert sum(shares) == (cells if any(parts) else 0)
    assert all(abs(share - part * cells / (sum(parts) or 1)) <= 1 for share, part in zip(shares, parts, strict=True))
