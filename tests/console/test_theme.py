from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import RenderableType
from rich.text import Text

from tests.console import test_banner, test_top
from tests.console.screens import render, screen, without_styles
from tests.console.story import crowd, short_story
from vllm_lite.console.bag import BagView
from vllm_lite.console.demo import canned_run
from vllm_lite.console.diff import Diff
from vllm_lite.console.mailroom import Mailroom
from vllm_lite.console.slowest import Slowest
from vllm_lite.console.theme import ASCII, UNICODE, Screen, new_console, request_name, request_style
from vllm_lite.console.timeline import Overview, Waterfall
from vllm_lite.console.totals import Totals

VIEWS: dict[str, Callable[[], RenderableType]] = {
    "bag": lambda: BagView(crowd(), 7),
    "banner": lambda: test_banner.BANNER,
    "diff": lambda: Diff(canned_run(), short_story(), ("runs/before", "runs/after")),
    "mailroom": lambda: Mailroom(short_story()),
    "mailroom of many": lambda: Mailroom(crowd()),
    "overview": lambda: Overview(crowd()),
    "slowest": lambda: Slowest(crowd(), 4),
    "top": lambda: test_top.frame(crowd()),
    "totals": lambda: Totals(crowd()),
    "waterfall": lambda: Waterfall(crowd().requests[3], 3),
}
WIDTHS = (20, 40, 59, 60, 79, 80, 81, 99, 100, 103, 104, 109, 110, 119, 120, 160, 200, 300)


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


@pytest.mark.parametrize("name", VIEWS)
def test_no_view_is_wider_than_the_screen_and_plain_ones_are_ascii(name: str) -> None:
    view = VIEWS[name]()
    for width in WIDTHS:
        for terminal in (False, True):
            text = without_styles(render(view, width, terminal, colour=terminal))
            assert max(len(line) for line in text.splitlines()) <= width
            assert terminal or text.isascii()


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
    new_console().print("[bold]:smile: 12 http://x[/bold]")
    assert capsys.readouterr().out == "[bold]:smile: 12 http://x[/bold]\n"
