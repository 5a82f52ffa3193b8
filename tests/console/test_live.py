from __future__ import annotations

import pytest

from tests.console.screens import printed, screen, without_styles
from vllm_lite.console import live
from vllm_lite.console.live import LiveAnswers


def test_elsewhere_than_on_a_terminal_each_answer_comes_in_lines_of_its_own() -> None:
    console = screen(30)
    with LiveAnswers(console, total=2) as answers:
        answers.begin(0, "What  is\nit?")
        answers.begin(1, "And?")
        answers.letter(0, "one two three four five ", 5)
        answers.letter(1, "a line\nand more", 4)
        answers.letter(0, "six seven", 2)
        answers.end(1, "ended by stop")
        answers.end(0, "ended by length")
    assert [line.rstrip() for line in printed(console).splitlines()] == [
        "A > What is it?",
        "B > And?",
        "B | a line",
        "A | one two three four five",
        "B | and more",
        "B = 4 tokens in 1 letter,",
        "B = ended by stop",
        "A | six seven",
        "A = 7 tokens in 2 letters,",
        "A = ended by length",
    ]


def test_a_word_longer_than_the_screen_is_cut() -> None:
    console = screen(20)
    with LiveAnswers(console, total=1) as answers:
        answers.begin(0, "?")
        answers.letter(0, "x" * 33, 1)
        answers.end(0, "done")
    assert [line.rstrip() for line in printed(console).splitlines()[1:4]] == ["A | " + "x" * 14, "A | " + "x" * 14, "A | xxxxx"]


def test_an_answer_cannot_draw_on_the_screen() -> None:
    for terminal in (False, True):
        console = screen(60, terminal)
        with LiveAnswers(console, total=1) as answers:
            answers.begin(0, "\x1b[2J")
            answers.letter(0, "a\x1b]0;title\x07b\tc\u202ed", 1)
            answers.end(0, "done")
        assert "\x1b[2J" not in printed(console)
        assert "a?]0;title?b c?d" in without_styles(printed(console))


def test_what_is_under_way_when_the_screen_closes_stays() -> None:
    console = screen(60)
    with LiveAnswers(console, total=1) as answers:
        answers.begin(0, "?")
        answers.letter(0, "half an ans", 3)
    assert [line.rstrip() for line in printed(console).splitlines()[1:]] == [
        "A | half an ans",
        "A = 3 tokens in 1 letter, left open",
    ]


def test_on_a_terminal_an_ended_answer_moves_above_the_live_region() -> None:
    console = screen(60, terminal=True)
    with LiveAnswers(console, total=2) as answers:
        answers.begin(0, "first?")
        answers.begin(1, "second?")
        answers.letter(0, "word " * 20, 20)
        answers.end(0, "ended by length")
        answers.letter(1, "short", 1)
        answers.end(1, "ended by stop")
    text = without_styles(printed(console))
    first = text.index("    20 tokens in 1 letter, ended by length")
    assert text.rindex("B > second?") > first
    assert "1 of 2 answers ended" in text
    assert text.index("    1 token in 1 letter, ended by stop") > first


def test_a_long_answer_under_way_shows_its_end() -> None:
    console = screen(40, terminal=True)
    with LiveAnswers(console, total=1) as answers:
        answers.begin(0, "?")
        answers.letter(0, "\n".join(f"line {i}" for i in range(9)), 9)
        region = [line.plain for line in answers._region()]
    assert region == ["A > ?", "    line 5", "    line 6", "    line 7", "    line 8", "    … 9 tokens in 1 letter"]


def test_what_does_not_fit_the_screen_is_counted() -> None:
    console = screen(40, terminal=True, height=8)
    with LiveAnswers(console, total=9) as answers:
        for number in range(9):
            answers.begin(number, "?")
        region = [line.plain for line in answers._region()]
    assert len(region) <= 8
    assert region[-2:] == ["┆ 6 more under way", "0 of 9 answers ended"]


def test_the_region_is_not_drawn_more_often_than_ten_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    console = screen(40, terminal=True)
    drawn: list[float] = []
    with LiveAnswers(console, total=1) as answers:
        assert answers._live is not None
        monkeypatch.setattr(answers._live, "update", lambda *_, **__: drawn.append(now[0]))
        answers.begin(0, "?")
        for _ in range(100):
            answers.letter(0, "x", 1)
            now[0] += 0.01
    assert 10 <= len(drawn) <= 12
