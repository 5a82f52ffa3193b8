"""How every view looks: one palette, two sets of glyphs, and the rule that no line is wider than the screen.

Process: whichever prints. Knows: rich, processes and fates. Does not know: what a view shows.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import LATE

DIM = "grey58"
STRONG = "bold"
ERROR = "bold #ff5f5f"
PROCESS_STYLES = {"frontend": "#4f9fef", "engine-core": "#d19a2c", "worker": "#c678c6", "wire": "grey62"}
PROCESS_NAMES = {"frontend": "front end", "engine-core": "engine core", "worker": "worker", "wire": "wire"}
FATE_STYLES = {rec.PUT: "", rec.STAPLED: "bold", rec.KEPT_BACK: DIM, LATE: "#ff5f5f"}  # "": the request's own
_REQUEST_STYLES = ("#3fbf6f", "#f0905a", "#2fb5b5", "#b8a82a", "#9a7cf0", "#f06f9a", "#7ab33a", "#b98f6a")


class Glyphs(NamedTuple):
    """What lines and bars are drawn with. `levels` fill a cell from nothing to all of it."""

    levels: str = " ▁▂▃▄▅▆▇"
    bar: str = "▆"
    rule: str = "─"
    heavy: str = "━"
    grid: str = "┊"
    border: str = "│"
    beyond: str = "»"
    ellipsis: str = "…"
    left: str = "←"
    right: str = "→"
    idle: str = "·"
    gap: str = "┆"
    end: str = "■"
    bullet: str = "•"
    phases: str = "▁▄▆"


UNICODE = Glyphs()
ASCII = Glyphs(" .:-=+*#", "#", "-", "=", "|", "|", ">", "...", "<", ">", ".", ":", "#", "*", ".+#")
NARROWEST, USUAL, PAPER, WIDEST = 20, 80, 120, 500  # cells


class Screen(NamedTuple):
    """What a view may use: `width` cells, its glyphs, and whether colours tell things apart."""

    width: int
    glyphs: Glyphs
    colour: bool

    @classmethod
    def of(cls, console: Console, options: ConsoleOptions | None = None) -> Screen:
        """Plain ASCII where the output is no terminal or cannot carry more."""
        options = options or console.options
        fancy = console.is_terminal and not options.ascii_only
        colour = fancy and console.color_system is not None and not console.no_color
        return cls(options.max_width, UNICODE if fancy else ASCII, colour)

    def fit(self, line: Text, width: int | None = None) -> Text:
        """`line` in at most `width` cells (the screen's where absent), its end marked where something was cut off."""
        width = self.width if width is None else width
        line.no_wrap, line.overflow = True, "crop"
        line.rstrip()
        if line.cell_len > width:
            mark = self.glyphs.ellipsis if width > len(self.glyphs.ellipsis) else ""
            line.truncate(width - len(mark))
            line.append(mark, DIM)
        return line

    def printable(self, text: str) -> str:
        """`text` on one line, without anything a terminal would obey; pure ASCII where the glyphs are."""
        shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
        return shown if self.glyphs is UNICODE else ascii(shown)[1:-1].replace("\\\\", "\\").replace("\\'", "'")

    def title(self, name: str, *facts: str) -> Text:
        """A view's first line: its name, what it holds, and a rule to the right edge."""
        return self._ruled(self.glyphs.rule, name.upper(), *facts)

    def heading(self, text: str) -> Text:
        """Above several views that belong together."""
        return self._ruled(self.glyphs.heavy, f"{self.glyphs.heavy * 2} {text}")

    def _ruled(self, rule: str, name: str, *facts: str) -> Text:
        line = Text().append(name, STRONG)
        for fact in filter(None, facts):
            line.append("  ").append(fact, DIM)
        line.append("  ").append(rule * (self.width - line.cell_len), DIM)
        return self.fit(line)


class View(ABC):
    """What a console prints: lines, each cut where the screen ends."""

    @abstractmethod
    def _lines(self, screen: Screen) -> Iterator[Text]: ...

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the view."""
        screen = Screen.of(console, options)
        return map(screen.fit, self._lines(screen))


def request_name(index: int) -> str:
    """0 is A, 25 is Z, 26 is AA: how a request is called on the screen."""
    name = ""
    index += 1
    while index:
        index, digit = divmod(index - 1, 26)
        name = chr(ord("A") + digit) + name
    return name


def request_style(index: int) -> str:
    """The colour of request number `index`, the same in every view."""
    return _REQUEST_STYLES[index % len(_REQUEST_STYLES)]


class _Console(Console):
    """Where whoever reads has left (`| head`), printing fails as writing does; rich would leave an event loop by SystemExit."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise BrokenPipeError


def new_console() -> Console:
    """A console as every command and demo uses it: no guessing at markup, numbers or emoji in what is printed."""
    console = _Console(markup=False, emoji=False, highlight=False)
    if not NARROWEST <= console.width <= WIDEST:  # COLUMNS may hold anything; 0 says that nobody knows
        console.width = min(max(console.width or USUAL, NARROWEST), WIDEST)
    return console


def new_paper() -> Console:
    """A console that keeps what is printed, for a page or a picture, in colour whatever this terminal can do."""
    return Console(
        file=io.StringIO(), record=True, width=PAPER, force_terminal=True, force_jupyter=False, color_system="truecolor",
        no_color=False, markup=False, emoji=False, highlight=False, legacy_windows=False,
    )  # fmt: skip
