from __future__ import annotations

import pytest

from tests.console.story import Caller, Teller, crowd, long_story, short_story
from tests.tracing import make
from vllm_lite.console import rows as console_rows
from vllm_lite.console.demo import canned_run
from vllm_lite.console.rows import ALIKE_FROM, TELLING, Cell, Ledger, Note, Row, fates
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import LATE


def rows_of(ledger: Ledger) -> list[Row]:
    return [row for row in ledger.rows if isinstance(row, Row)]


def cells_of(ledger: Ledger) -> list[dict[int, Cell]]:
    return [ledger.cells(row) for row in rows_of(ledger)]


def test_a_row_for_each_bag_with_what_each_request_got() -> None:
    ledger = Ledger(short_story())
    assert [row.bags[0].sort.bag for row in rows_of(ledger)] == list(range(9))
    cells = cells_of(ledger)
    assert [row[1] for row in cells[:8]] == [
        *(Cell(rec.PUT), Cell(rec.PUT), Cell(rec.STAPLED, 1), Cell(rec.PUT), Cell(rec.STAPLED, 1), Cell(rec.STAPLED, 2)),
        *(Cell(rec.PUT), Cell(rec.STAPLED, 1, last=True)),
    ]
    assert cells[4][2] == Cell(rec.PUT, last=True)
    assert cells[5][2] == Cell(LATE)
    assert 2 not in cells[6]


def test_requests_have_the_numbers_they_are_given() -> None:
    assert sorted(cells_of(Ledger(short_story(), [10, 11, 12]))[0]) == [10, 11, 12]


def test_a_put_letter_has_the_text_of_the_take_that_found_it() -> None:
    texts = {"req-1": ["a", "bc", "def", "gh"], "req-2": ["x"]}
    cells = cells_of(Ledger(short_story(), texts=texts))
    assert [row[1].text for row in cells[:8]] == ["a", "bc", "", "def", "", "", "gh", ""]
    assert [row[2].text for row in cells[:5]] == ["x", "", "", "", ""]  # its caller wrote no more down
    assert cells[0][0].text == ""


def test_an_abort_stands_after_the_bag_that_brought_it_about() -> None:
    rows = Ledger(short_story()).rows
    note = rows[5]
    assert isinstance(note, Note)
    assert not note.bad
    assert note.request == 2
    assert note.text == "C abort: stop string found; the core heard it 140 us later; 1 late letter"


def test_a_caller_that_left_is_told_as_such_and_has_no_last_letter() -> None:
    ledger = Ledger(Teller([Caller(answer=9, leaves_after=3)]).tell())
    (note,) = [row for row in ledger.rows if isinstance(row, Note)]
    assert note.bad
    assert note.text == "A abort: caller left; the core heard it 140 us later"
    assert not any(cell.last for cells in cells_of(ledger) for cell in cells.values())


def test_a_preemption_and_a_death_are_told() -> None:
    notes = [row.text for row in Ledger(canned_run()).rows if isinstance(row, Note)]
    assert "C preempted: its KV blocks went to others, it queues and computes again" in notes
    notes = [row.text for row in Ledger(canned_run(engine_dies=True)).rows if isinstance(row, Note)]
    assert notes[-1] == "engine core 0 died"


def test_a_step_without_a_letter_has_a_row_of_its_own() -> None:
    first = rows_of(Ledger(Teller([Caller(prompt=300, answer=2)], chunk=128).tell()))[0]
    assert first.bags == []
    assert len(first.steps) == 1
    assert first.why == "no letter yet: 128 prompt tokens of A"


def test_bags_that_tell_the_same_shrink() -> None:
    rows = Ledger(long_story()).shortened(24)
    texts = [row.text if isinstance(row, Note) else row.why or row.bags[0].sort.bag for row in rows]
    assert texts == [
        *(0, 1, 2, 3, 4, "35 alike", 40, 41, "B abort: caller left; the core heard it 140 us later"),
        *(42, 43, 44, "12 alike", 57, 58, 59),
    ]
    gap = rows[5]
    assert isinstance(gap, Row)
    assert [bag.sort.bag for bag in gap.bags] == list(range(5, 40))


def test_a_run_of_alike_bags_must_be_long_to_shrink() -> None:
    run = Teller([Caller(answer=ALIKE_FROM - 1)]).tell()
    assert len(Ledger(run).shortened(3)) == 3
    assert len(Ledger(run).shortened(ALIKE_FROM - 1)) == ALIKE_FROM - 1


def test_a_long_varied_run_loses_its_middle_and_says_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_rows, "TELLING", 0)
    ledger = Ledger(crowd())
    everything, rows = ledger.rows, ledger.shortened(12)
    assert len(rows) == 12
    (gap,) = [row for row in rows if isinstance(row, Row) and row.why]
    left_out = len(everything) - 11
    events = left_out - len(gap.bags)
    letters = fates(gap.bags)
    told = f"{letters[rec.PUT]} put, {letters[rec.STAPLED]} stapled, {letters[LATE]} late"
    assert gap.why == f"{len(gap.bags)} more, {events} events: {told}"
    assert rows[-1] is everything[-1]


def tells(row: Row | Note, *fates: str) -> bool:
    return isinstance(row, Note) or (not row.why and any(letter.fate in fates for bag in row.bags for letter in bag.letters))


def test_rows_that_tell_of_more_than_ordinary_letters_stay_while_they_are_few() -> None:
    ledger = Ledger(crowd())
    everything, rows = ledger.rows, ledger.shortened(12)
    telling = [row for row in everything if tells(row, rec.STAPLED, LATE)]
    assert 12 < len(telling) <= TELLING
    assert [row for row in rows if tells(row, rec.STAPLED, LATE)] == telling
    assert len(rows) < len(everything)


def test_staples_that_are_not_few_go_before_events_do(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(crowd())
    everything = ledger.rows
    rare = [row for row in everything if tells(row, LATE)]
    monkeypatch.setattr(console_rows, "TELLING", len(rare))
    rows = ledger.shortened(12)
    assert [row for row in rows if tells(row, LATE)] == rare
    assert sum(tells(row, rec.STAPLED) for row in rows) < sum(tells(row, rec.STAPLED) for row in everything)


def test_a_staple_ends_a_row_of_alike_bags() -> None:
    run = Teller([Caller(answer=30)]).tell()
    run.bags[14].sort.fates = rec.STAPLED
    texts = [row.why or row.bags[0].sort.bag for row in Ledger(run).shortened(24) if isinstance(row, Row)]
    assert texts == [0, 1, 2, "9 alike", 12, 13, 14, 15, 16, 17, "9 alike", 27, 28, 29]


def test_no_limit_shows_all() -> None:
    ledger = Ledger(crowd())
    assert ledger.shortened(None) == ledger.rows


def test_fates_are_the_bags_own_counts() -> None:
    assert fates(short_story(level=1).bags) == {rec.PUT: 18, rec.STAPLED: 4, rec.KEPT_BACK: 0, LATE: 1}


def test_steps_without_letters_shrink_too() -> None:
    run = Teller([Caller(prompt=1000, answer=2)], chunk=64).tell()
    whys = [row.why for row in Ledger(run).shortened(8) if isinstance(row, Row)]
    assert whys[:4] == [*["no letter yet: 64 prompt tokens of A"] * 3, "10 alike"]


def test_the_order_of_letters_in_a_bag_does_not_matter() -> None:
    run = Teller([Caller(answer=30), Caller(answer=30)]).tell()
    for bag in run.bags[::2]:
        bag.members.reverse()
    assert [row.why for row in Ledger(run).shortened(10) if isinstance(row, Row) and row.why] == ["24 alike"]


def test_a_letter_that_was_kept_back_hangs_on_no_pile() -> None:
    front = make.front()
    bags = [(front, make.sort(number, 10 * number, [(1, 1, fate)])) for number, fate in enumerate("pkss")]
    cells = cells_of(Ledger(make.run((front, make.accept()), *bags)))
    assert [row[0].stapled for row in cells] == [0, 0, 1, 2]


def test_a_pile_whose_first_letters_were_cut_away_is_as_high_as_is_known() -> None:
    front = make.front()
    run = make.run((front, make.accept()), *((front, make.sort(n, 10 * n, [(1, 1, fate)])) for n, fate in enumerate("psssss")))
    run.requests[0].cut(2)
    assert [row[0].stapled for row in cells_of(Ledger(run))] == [0, 1, 1, 1, 2, 3]
