from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from tests.console.screens import screen
from vllm_lite.console.theme import ASCII, UNICODE, Screen, new_console, request_name, request_style


@pytest.mark.parametrize(
    ("index", "name"), [(0, "A"), (25, "Z"), (26, "AA"), (51, "AZ"), (52, "BA"), (701, "ZZ"), (702, "AAA")]
)
def test_requests_are_named_as_columns_of_a_sheet_are(index: int, name: str) -> None:
    assert request_name(index) == name


def test_neighbours_have_different_colours() -> None:
    assert len({request_style(i) for i in range(8)}) == 8
    assert request_style(8) == request_style(0)


def test_plain_ascii_where_the_output_is_no_terminal() -> None:
    assert Screen.of(screen(80)) == Screen(80, ASCII, colour=False)
    assert Screen.of(screen(80, terminal=True)) == Screen(80, UNICODE, colour=False)
    assert Screen.of(screen(80, terminal=True, colour=True)) == Screen(80, UNICODE, colour=True)


def test_all_ascii_glyphs_are_ascii() -> None:
    assert all(glyph.isascii() for glyph in ASCII)
    assert [len(glyph) for glyph in ASCII if glyph != ASCII.ellipsis] == [len(g) for g in UNICODE if g != UNICODE.ellipsis]


@given(st.text(max_size=60), st.integers(1, 40))
def test_a_line_is_never_wider_than_the_screen(text: str, width: int) -> None:
    for terminal in (False, True):
        where = Screen.of(screen(width, terminal))
        assert where.fit(Text(where.printable(text))).cell_len <= width


def test_what_is_cut_off_is_marked() -> None:
    assert Screen.of(screen(10)).fit(Text("0123456789")).plain == "0123456789"
    assert Screen.of(screen(10)).fit(Text("0123456789a")).plain == "0123456..."
    assert Screen.of(screen(10, terminal=True)).fit(Text("0123456789a")).plain == "012345678…"


def test_nothing_that_a_terminal_would_obey_is_printed() -> None:
    unicode, plain = Screen.of(screen(80, terminal=True)), Screen.of(screen(80))
    assert unicode.printable("a\x1b[31mb\nc\u202eä") == "a\\x1b[31mb\\nc\\u202eä"
    assert plain.printable("a\x1b[31mb\nc 'ä' \\") == "a\\x1b[31mb\\nc '\\xe4' \\"


def test_a_title_reaches_the_right_edge() -> None:
    assert Screen.of(screen(30)).title("bag 3", "2 letters").plain == "BAG 3  2 letters  " + "-" * 12
    assert Screen.of(screen(12)).heading("Act 1 of 4").plain == "== Act 1 ..."


@pytest.mark.parametrize(("columns", "width"), [("0", 80), ("7", 20), ("90", 90), ("9" * 30, 500)])
def test_a_width_is_within_reason(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert new_console().width == width


def test_commands_print_what_they_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    new_console(width=40).print("[bold]:smile: 12 http://x[/bold]")
    assert capsys.readouterr().out == "[bold]:smile: 12 http://x[/bold]\n"
