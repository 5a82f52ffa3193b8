from __future__ import annotations

import pytest

from tests.console.screens import Golden, lines
from tests.console.story import MS, Caller, Teller, short_story
from vllm_lite.console.demo import canned_run
from vllm_lite.console.diff import Diff, _ratio, _verdict
from vllm_lite.tracing.compare import Pair

NAMES = ("runs/before", "runs/after")


def test_golden(golden: Golden) -> None:
    golden("diff", Diff(canned_run(), canned_run(engine_dies=True), NAMES))
    golden("diff-stories", Diff(short_story(), Teller([Caller(12, 9), Caller(9, 8, 2 * MS, slow=9 * MS)]).tell(), NAMES))


def test_both_runs_are_named_and_their_facts_stand_beside_each_other() -> None:
    text = lines(Diff(canned_run(), canned_run(engine_dies=True), NAMES))
    assert text[1:3] == ["A  runs/before", "B  runs/after"]
    assert [line.split() for line in text[4:6]] == [["requests", "3", "3", "1.00"], ["finished", "3", "1", "0.33"]]
    assert text[7].split() == ["cached", "tokens", "0", "0", "-"]


def test_each_station_with_its_means_and_which_is_faster() -> None:
    text = [line.split() for line in lines(Diff(canned_run(), canned_run(engine_dies=True), NAMES), 120)]
    assert ["S8", "sort", "0.14", "0.16", "1.14", "slower", "0.14", "0.17", "0.18", "0.18", "9", "5"] in text
    assert ["S5", "schedule", "0.40", "0.40", "1.00", "alike", "0.40", "0.40", "0.40", "0.40", "9", "5"] in text


def test_columns_have_units() -> None:
    units, heads = lines(Diff(canned_run(), canned_run(), NAMES), 120)[20:22]
    assert units.split() == ["mean", "ms", "p50", "ms", "p99", "ms", "times"]
    assert heads.split() == ["station", "A", "B", "B/A", *"ABABAB"]
    assert all(
        units.index(unit) + len(unit) in [i + 1 for i, c in enumerate(heads) if c == "B"] for unit in ("p50 ms", "times")
    )


def test_a_station_that_only_one_run_came_to() -> None:
    text = [line.split() for line in lines(Diff(Teller([Caller()]).tell(), short_story(), NAMES), 120)]
    (line,) = [words for words in text if words[0] == "abort"]
    assert line == ["abort", "-", "0.14", "-", "-", "0.14", "-", "0.14", "0", "1"]


@pytest.mark.parametrize(
    ("a", "b", "ratio", "verdict"),
    [
        *((100, 110, "1.10", "slower"), (100, 109, "1.09", "alike"), (110, 100, "0.91", "faster")),
        *((1, 100, "100", "slower"), (1, 12345, "12,345", "slower"), (0, 5, "-", ""), (5, None, "-", "")),
    ],
)
def test_from_a_tenth_on_one_of_them_is_faster(a: float, b: float | None, ratio: str, verdict: str) -> None:
    pair = Pair("S5", a, b)
    assert (_ratio(pair), _verdict(pair)) == (ratio, verdict)
