from __future__ import annotations

import pytest

from tests.console.story import MS, US, Caller, Teller, short_story
from tests.tracing import make
from vllm_lite.console.columns import COLUMNS, PLANS, TIMED, WAIT, Column, longest_waits, row_figures
from vllm_lite.console.rows import Ledger, Row
from vllm_lite.tracing import records as rec


def shown(column: Column, known: dict[str, float]) -> str:
    value = known.get(column.key)
    return "-" if value is None else column.text(value)


def test_a_bags_figures() -> None:
    run = short_story()
    row = Ledger(run).rows[0]
    assert isinstance(row, Row)
    known = row_figures(row)
    assert [shown(column, known) for column in COLUMNS] == [
        *("0", "3", "165", "0.15", "20.94", "0.14", "0.10", "0.25"),
    ]
    assert [shown(column, known) for column in PLANS] == ["33", "3", "0", "3.3%"]
    assert WAIT.text(longest_waits(run, [row])[id(row)]) == "0.04"
    assert [column.top for column in COLUMNS[3:]] == ["S5", "S6", "S7", "", "S8"]


def test_bags_left_out_have_means_and_no_number() -> None:
    run = Teller([Caller(answer=4)]).tell()
    rows = [row for row in Ledger(run).rows if isinstance(row, Row)]
    gap = Row(rows[1].bags + rows[2].bags, rows[1].steps + rows[2].steps, why="2 alike")
    first, second, known = row_figures(rows[1]), row_figures(rows[2]), row_figures(gap)
    assert shown(COLUMNS[0], known) == "-"
    assert [known[key] for key in TIMED] == pytest.approx([(first[key] + second[key]) / 2 for key in TIMED])


def test_a_step_without_a_bag_has_only_its_own_times() -> None:
    run = Teller([Caller(prompt=300, answer=2)], chunk=256).tell()
    row = Ledger(run).rows[0]
    assert isinstance(row, Row)
    assert list(row_figures(row)) == ["S5", "S6", *(column.key for column in PLANS)]


def test_the_wait_is_that_of_the_letter_that_lay_longest() -> None:
    run = Teller([Caller(answer=4), Caller(answer=4, slow=50 * MS)]).tell()
    rows = [row for row in Ledger(run).rows if isinstance(row, Row)]
    waits = [longest_waits(run, rows).get(id(row)) for row in rows]
    slow = [letter.fate for letter in run.requests[1].letters]
    assert slow == ["p", "p", "s", "s"]
    assert waits[0] == 45 * US
    assert waits[2] == 45 * US
    assert waits[1] is not None
    assert waits[1] > 30 * MS


def test_the_letter_that_tells_of_an_abort_lay_in_no_bag() -> None:
    front = make.front()
    run = make.run(
        (front, make.accept()),
        (front, make.sort(0, 10, [(1, 1, "p")])),
        (front, rec.Takes([1], [17])),
        (front, make.abort(t=30)),
        (front, rec.Farewell(1, 30, "p")),
        (front, rec.Takes([1], [930])),
        (front, make.close(t=940)),
    )
    (row,) = [row for row in Ledger(run).rows if isinstance(row, Row)]
    assert longest_waits(run, [row]) == {id(row): 3}
