from __future__ import annotations

import pytest

from vllm_lite.console import figures


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
