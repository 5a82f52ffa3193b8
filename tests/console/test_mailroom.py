from __future__ import annotations

import pytest

from tests.console.screens import Golden, lines, render, without_styles
from tests.console.story import MS, Caller, Teller, crowd, long_story, short_story
from vllm_lite.console import rows
from vllm_lite.console.demo import canned_run
from vllm_lite.console.mailroom import Mailroom
from vllm_lite.tracing.journey import Process


def test_golden(golden: Golden) -> None:
    golden("mailroom", Mailroom(short_story()))
    golden("mailroom-canned", Mailroom(canned_run()))
    golden("mailroom-long", Mailroom(long_story()))
    golden("mailroom-crowd", Mailroom(crowd()))


def test_golden_of_several_engine_cores(golden: Golden) -> None:
    run = Teller([Caller(answer=6), Caller(answer=6, slow=40 * MS), Caller(answer=20)]).tell()
    run.processes.append(Process("engine-core", 102, "host", "boot"))
    for bag in run.bags[1:5]:
        bag.sort.engine_index = 1
    golden("mailroom-cores", Mailroom(run, rows=16))


TEXTS = {
    "req-0": ["The", " clerk", " sorts", " a", " bag", " of", "\n", "lettersandwhatnot", "."],
    "req-1": ["Slow", " but sure", ", she said", " so"],
}


def test_golden_with_what_callers_read(golden: Golden) -> None:
    golden("mailroom-texts", Mailroom(short_story(), texts=TEXTS))


def test_texts_are_shown_where_lanes_have_room_for_them() -> None:
    run = Teller([Caller(answer=3)]).tell()
    view = Mailroom(run, texts={"req-0": ["one", " two\x1b", "threethreethree"]})
    assert [line.split("|")[1].strip() for line in lines(view, 80)[3:6]] == [
        "put  'one'",
        "put  ' two\\x1b'",
        "put# 'threethree...",
    ]
    assert "'...' what the caller read when it took the letter" in render(view, 80)
    assert "'one'" not in render(Mailroom(run, texts={"req-0": ["one"]}), 64)
    assert "'" not in render(Mailroom(run, texts={"someone else": ["one"]}), 80).replace("answer's", "")


def test_a_stapled_text_has_the_room_that_the_figures_of_the_step_would_take() -> None:
    run = Teller([Caller(answer=2)]).tell()
    view = Mailroom(run, texts={"req-0": ["the", " art of stapling letters"]})
    assert "put# ' art of stapling letters'" in render(view, 120)
    assert f"put  '{'s' * 28}..." in lines(Mailroom(run, texts={"req-0": ["s" * 40]}), 120)[3]


def test_a_narrow_screen_keeps_the_wait_rather_than_the_bytes() -> None:
    run = Teller([Caller(answer=12, slow=300 * MS), Caller(answer=12)]).tell()
    assert lines(Mailroom(run), 80)[2].split()[1:8] == ["letters", "schedule", "execute", "bag", "wire", "sort", "wait"]
    assert "bytes" in lines(Mailroom(run), 100)[2]


def test_the_wait_of_bags_left_out_is_the_longest_and_called_so() -> None:
    text = " ".join(lines(Mailroom(long_story()), 120))
    assert "bags left out, with the mean of each figure, but the longest wait " in text
    assert "wait the longest that a letter of the row lay there" in text
    assert "but" not in " ".join(lines(Mailroom(long_story(), rows=5), 60))


def test_plain_screens_are_ascii() -> None:
    assert render(Mailroom(crowd()), 120).isascii()


def test_the_same_words_with_and_without_colours() -> None:
    plain = render(Mailroom(short_story()), 80, terminal=True)
    coloured = render(Mailroom(short_story()), 80, terminal=True, colour=True)
    assert without_styles(coloured) == without_styles(plain)
    assert "\x1b[38;2;" in coloured
    assert "\x1b[38" not in plain


def test_one_row_for_each_bag_with_rows_none() -> None:
    text = lines(Mailroom(long_story(), rows=None))
    numbers = [line.split()[0] for line in text if line[:5].strip().isdigit()]
    assert numbers == [str(n) for n in range(60)]


def test_lanes_where_there_is_room_and_names_by_fate_where_there_is_not() -> None:
    run = Teller([Caller(answer=2) for _ in range(9)]).tell()
    assert "A    B    C    D    E    F    G    H    I" in "\n".join(lines(Mailroom(run), 120))
    assert any(line.endswith("| put A-I") for line in lines(Mailroom(run), 80))


def test_exceptions_come_first_where_names_are_grouped() -> None:
    callers = [Caller(answer=6, slow=40 * MS if i == 3 else 0, stops=i == 5) for i in range(9)]
    text = lines(Mailroom(Teller(callers).tell()), 100)
    assert any(line.endswith("| +1 D  put A-C E-I") for line in text)


def test_a_request_under_way_without_a_letter_has_a_dot() -> None:
    run = Teller([Caller(20, 8), Caller(300, 4)], chunk=100).tell()
    first = next(line for line in lines(Mailroom(run)) if line.startswith("    0 "))
    assert first.endswith("| put  .")
    assert any(". under way, no letter in this bag" in line for line in lines(Mailroom(run)))


def test_numbers_go_on_in_a_part_of_a_run() -> None:
    run = Teller([Caller(answer=1)]).tell()
    assert lines(Mailroom(run, numbers=[3]))[2].endswith("| D")


def test_without_single_letters_the_counts_stand_in_their_place() -> None:
    text = lines(Mailroom(short_story(level=1)))
    assert text[3].endswith("| 3 put")
    assert any(line.endswith("| 1 put, 1 stapled") for line in text)


def test_a_run_without_a_bag() -> None:
    run = short_story()
    run.bags.clear()
    run.steps.clear()
    for request in run.requests:
        request.aborts.clear()
    assert lines(Mailroom(run))[1] == "No bag was sorted in this run."


def test_what_was_left_out_is_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Mailroom(crowd()).folded
    monkeypatch.setattr(rows, "TELLING", 0)
    view = Mailroom(crowd())
    assert view.folded
    (line,) = [line for line in lines(view, 120) if " more, " in line]
    assert line.endswith("| 5 more, 1 event: 141 put, 9 stapled, 1 late")
