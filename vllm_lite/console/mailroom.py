"""The mailroom view: one row for each bag, where its time went from S5 to S8, and into whose mailbox its letters came.

Process: whichever prints. Knows: the journey model, the screen. Does not know: files, engines.
`python -m vllm_lite.console.mailroom` shows it with a canned run.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from vllm_lite.console import figures
from vllm_lite.console.bars import split
from vllm_lite.console.passage import STOPS, WIRE, Slot, bag_intervals, slots, step_intervals
from vllm_lite.console.rows import Cell, Ledger, Note, Row, fates, shorten
from vllm_lite.console.theme import DIM, ERROR, FATE_STYLES, PROCESS_STYLES, STRONG, Screen, request_name, request_style
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import LATE, Bag, Run

ROWS = 24  # shown before the middle is left out
WORDS = {rec.PUT: "put", rec.KEPT_BACK: "kept", LATE: "late"}
STYLES = {rec.PUT: "put", rec.STAPLED: "stapled", rec.KEPT_BACK: "kept", LATE: "late"}
TIMED = ("S5", "S6", "S7", WIRE, "S8")
BAR_LEAST, BAR_MOST = 16, 40
TEXT_LEAST = 22  # cells for words in the place of the mailboxes


class Column(NamedTuple):
    """A column of figures: two lines of heading, and the figure of a row (None: not known)."""

    top: str
    name: str
    style: str
    figure: Callable[[Row], float | None]
    text: Callable[[float], str]


class Mailroom:
    """Draws a run's bags. `rows` limits how many (None: all); `first` is the number of the run's first request."""

    def __init__(self, run: Run, rows: int | None = ROWS, first: int = 0) -> None:
        self.run = run
        self.ledger = Ledger(run, first)
        self.rows = shorten(self.ledger.rows, rows)
        self.waits = _waits(run)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the view."""
        return _lines(self, Screen.of(console, options))


def _lines(view: Mailroom, screen: Screen) -> Iterator[Text]:
    bags = view.run.bags
    letters = sum(bag.sort.num_outputs for bag in bags)
    facts = [
        figures.count(len(bags), "bag"),
        figures.count(letters, "letter"),
        figures.size(sum(b.sort.body_size for b in bags)),
    ]
    yield screen.title("mailroom", *facts, "times in ms")
    if not any(isinstance(row, Row) for row in view.rows):
        yield screen.fit(Text("No bag was sorted in this run.", DIM))
        return
    layout = _Layout(view, screen)
    yield from layout.heading()
    for row in view.rows:
        yield layout.note(row) if isinstance(row, Note) else layout.row(row)
    yield from layout.legend()


class _Layout:
    """Who gets how much of the width: first the figures, then the mailboxes, then what is nice to have."""

    def __init__(self, view: Mailroom, screen: Screen) -> None:
        self.view, self.screen = view, screen
        self.held = [row for row in view.rows if isinstance(row, Row)]
        self.columns = _columns(view)
        self.names = sorted({number for row in self.held for number in row.cells})
        self.lane = max([4, *(len(self.cell(c)) for row in self.held for c in row.cells.values())]) + 1
        self.widths = [self._width(column) for column in self.columns]
        room = screen.width - sum(self.widths) - len(screen.glyphs.border) - 2
        self.lanes = bool(self.names) and len(self.names) * self.lane <= max(room, 0)
        room -= max(TEXT_LEAST, len(self.names) * self.lane if self.lanes else 0)
        wait, *plans = _extras(view)
        room -= self._add(wait, room)
        bar = BAR_LEAST + 2 if room >= BAR_LEAST + 2 else 0
        for column in plans:
            room -= self._add(column, room - bar)
        self.bar = min(BAR_MOST, room - 2) if bar else 0
        totals = [sum(self.parts(row)) for row in self.held if not row.why]
        self.scale = 1.25 * median(totals or [1])

    def _add(self, column: Column, room: int) -> int:
        """Add a column where there is room for it; what it takes."""
        width = self._width(column)
        if width > room:
            return 0
        self.columns.append(column)
        self.widths.append(width)
        return width

    def _width(self, column: Column) -> int:
        return max(len(column.top), len(column.name), *(len(self.figure(column, row)) for row in self.held)) + 2

    def figure(self, column: Column, row: Row) -> str:
        value = column.figure(row)
        if value is None:
            return self.screen.glyphs.gap if row.why and row.bags and column.name == "bag" else "-"
        return column.text(value)

    def heading(self) -> Iterator[Text]:
        """Two lines: station codes, then names; the mailboxes' owners at the right."""
        top, names = Text(), Text()
        for column, width in zip(self.columns, self.widths, strict=True):
            top.append(column.top.rjust(width), column.style)
            names.append(column.name.rjust(width), column.style or DIM)
        if self.bar:
            top.append("  " + "S5 to S8".ljust(self.bar), DIM)
            names.append("  " + f"0 to {figures.span(self.scale)}".ljust(self.bar), DIM)
        border = self.screen.glyphs.border
        top.append(f"  {border} ", DIM).append("S9 mailbox", PROCESS_STYLES["frontend"])
        names.append(f"  {border} ", DIM)
        for number in self.names if self.lanes else []:
            names.append(request_name(number).ljust(self.lane), f"bold {request_style(number)}")
        yield self.screen.fit(top)
        yield self.screen.fit(names)

    def row(self, row: Row) -> Text:
        """A bag, or those left out (dim, with their means)."""
        line = Text()
        for column, width in zip(self.columns, self.widths, strict=True):
            line.append(self.figure(column, row).rjust(width), DIM if row.why else column.style)
        if self.bar:
            line.append("  ").append_text(self._bar(row))
        line.append(f"  {self.screen.glyphs.border} ", DIM)
        if row.why:
            line.append(row.why if not row.bags or "alike" in row.why else f"{row.why}: {_account(row.bags)}", DIM)
        elif self.lanes:
            line.append_text(self._lanes(row))
        else:
            line.append_text(self._grouped(row) if row.cells else Text(_account(row.bags)))
        return self.screen.fit(line)

    def note(self, note: Note) -> Text:
        """Something between the bags."""
        mark = self.screen.glyphs.bullet
        style = "" if note.request is None else request_style(note.request)
        text = self.screen.printable(note.text)
        return self.screen.fit(Text.assemble((f"  {mark} ", ERROR if note.bad else DIM), (text, style)))

    def parts(self, row: Row) -> list[int]:
        """Nanoseconds at S5, S6, S7, on the wire and at S8 (means where the row stands for several bags)."""
        return [round(_mean_time(row, key) or 0) for key in TIMED]

    def _bar(self, row: Row) -> Text:
        parts = self.parts(row)
        cells = max(1, min(self.bar, round(sum(parts) / self.scale * self.bar)))
        beyond = sum(parts) > self.scale * 1.02
        line = Text()
        for key, part in zip(TIMED, split(parts, cells - beyond), strict=True):
            mark = self.screen.glyphs.bar if self.screen.colour else STOPS[key].code[1:] or "-"
            line.append(mark * part, PROCESS_STYLES[STOPS[key].process])
        if beyond:
            line.append(self.screen.glyphs.beyond, DIM)
        line.append(" " * (self.bar - line.cell_len))
        return line

    def cell(self, cell: Cell) -> str:
        """A letter's fate in at most a word."""
        word = f"+{cell.stapled}" if cell.fate == rec.STAPLED else WORDS[cell.fate]
        return word + (self.screen.glyphs.end if cell.last else "")

    def _lanes(self, row: Row) -> Text:
        line = Text()
        for number in self.names:
            cell = row.cells.get(number)
            if cell is None:
                line.append((self.screen.glyphs.idle if self._waiting(number, row) else "").ljust(self.lane), DIM)
            else:
                line.append(self.cell(cell).ljust(self.lane), FATE_STYLES[STYLES[cell.fate]] or request_style(number))
        return line

    def _waiting(self, number: int, row: Row) -> bool:
        """Whether the request was under way when the bag came."""
        if not row.bags:
            return False
        request, bag = self.view.ledger.requests[number], row.bags[0]
        t = bag.process.wall(bag.sort.t_received)
        wall, close = request.process.wall, request.close
        return wall(request.accept.t) <= t and (close is None or t <= wall(close.t))

    def _grouped(self, row: Row) -> Text:
        """Too many for lanes: names by fate, the exceptions first."""
        by_word: dict[str, list[int]] = {}
        for number, cell in sorted(row.cells.items()):
            by_word.setdefault(self.cell(cell), []).append(number)
        line = Text()
        for word in sorted(by_word, key=lambda w: (w == WORDS[rec.PUT], w)):
            line.append(word + " ", STRONG).append(_ranges(by_word[word]) + "  ")
        return line

    def legend(self) -> Iterator[Text]:
        """What the words mean, of those on the screen."""
        met = {cell.fate for row in self.held for cell in row.cells.values()}
        words = {
            "put": rec.PUT in met and "laid in the mailbox",
            "+n": rec.STAPLED in met and "stapled: n letters now hang on the one not taken yet",
            "kept": rec.KEPT_BACK in met and "kept back for a later letter",
            "late": LATE in met and "nobody waits for it any more",
            self.screen.glyphs.end: any(c.last for row in self.held for c in row.cells.values()) and "the answer's last",
            self.screen.glyphs.idle: self.lanes and "under way, no letter in this bag",
        }
        line = Text("  ")
        for word, meaning in words.items():
            if not meaning:
                continue
            if line.cell_len + len(word) + len(meaning) + 3 > self.screen.width:
                yield self.screen.fit(line)
                line = Text("  ")
            line.append(word, STRONG).append(f" {meaning}  ", DIM)
        if line.plain.strip():
            yield self.screen.fit(line)


def _columns(view: Mailroom) -> list[Column]:
    def bag(row: Row) -> float | None:
        return row.bags[0].sort.bag if len(row.bags) == 1 and not row.why else None

    def whole(value: float) -> str:
        return f"{value:,.0f}"

    columns = [
        Column("", "bag", STRONG, bag, lambda value: f"{value:.0f}"),
        Column("", "letters", "", lambda row: _mean([b.sort.num_outputs for b in row.bags]), whole),
        Column("", "bytes", "", lambda row: _mean([b.sort.body_size for b in row.bags]), whole),
    ]
    for key in TIMED:
        stop = STOPS[key]
        columns.append(Column(stop.code, stop.name, PROCESS_STYLES[stop.process], _timed(key), figures.ms))
    return columns


def _timed(key: str) -> Callable[[Row], float | None]:
    return lambda row: _mean_time(row, key)


def _extras(view: Mailroom) -> list[Column]:
    """Columns for wide screens, the most telling first."""

    def plan(name: str) -> Callable[[Row], float | None]:
        return lambda row: _mean([float(getattr(step.schedule, name)) for step in row.steps])

    def wait(row: Row) -> float | None:
        found = [view.waits[id(bag)] for bag in row.bags if id(bag) in view.waits]
        return max(found, default=None)

    return [
        Column("S9", "wait", PROCESS_STYLES["frontend"], wait, figures.ms),
        Column("step's", "tokens", DIM, plan("num_tokens"), lambda value: f"{value:,.0f}"),
        Column("", "running", DIM, plan("num_running"), lambda value: f"{value:,.0f}"),
        Column("", "waiting", DIM, plan("num_waiting"), lambda value: f"{value:,.0f}"),
        Column("KV", "used", DIM, plan("kv_usage"), lambda value: f"{value:.1%}"),
    ]


def _waits(run: Run) -> dict[int, int]:
    """By bag: the longest time one of its letters lay in a mailbox."""
    found: dict[int, int] = {}
    for request in run.requests:
        filled: list[Slot] = slots(request)
        puts = [letter for letter in request.letters if letter.fate == rec.PUT]
        for slot, letter in zip(filled, puts, strict=True):
            if slot.t_take is not None:
                found[id(letter.bag)] = max(found.get(id(letter.bag), 0), slot.t_take - slot.t_put)
    return found


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _mean_time(row: Row, key: str) -> float | None:
    held = [bag_intervals(bag) for bag in row.bags] or [step_intervals(step) for step in row.steps]
    return _mean([found[key][1] - found[key][0] for found in held if key in found])


def _account(bags: Sequence[Bag]) -> str:
    """What became of the letters of these bags."""
    words = {rec.PUT: "put", rec.STAPLED: "stapled", rec.KEPT_BACK: "kept back", LATE: "late"}
    found = fates(bags)
    return ", ".join(f"{found[fate]:,} {word}" for fate, word in words.items() if found[fate]) or "no letter"


def _ranges(numbers: Sequence[int]) -> str:
    """Names in a row joined to ranges: "A-D F"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return " ".join(
        f"{request_name(p[0])}-{request_name(p[-1])}" if len(p) > 2 else " ".join(request_name(n) for n in p) for p in parts
    )


if __name__ == "__main__":
    from vllm_lite.console.demo import canned_run
    from vllm_lite.console.theme import new_console

    new_console().print(Mailroom(canned_run(), rows=None if "--all" in sys.argv else ROWS))
