"""The mailroom view: one row for each bag, where its time went from S5 to S8, and into whose mailbox its letters came.

Process: whichever prints. Knows: the journey model, the screen. Does not know: files, engines.
`python -m vllm_lite.console.mailroom` shows it with a canned run.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from vllm_lite.console import figures
from vllm_lite.console.bars import split
from vllm_lite.console.columns import COLUMNS, PLANS, TIMED, WAIT, Column, row_figures
from vllm_lite.console.passage import STOPS
from vllm_lite.console.rows import Cell, Ledger, Note, Row, fates
from vllm_lite.console.theme import DIM, ERROR, FATE_STYLES, PROCESS_STYLES, STRONG, Screen, request_name, request_style
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import LATE, Bag, Run

ROWS = 24  # shown before the middle is left out
WORDS = {rec.PUT: "put", rec.KEPT_BACK: "kept", LATE: "late"}
BAR_LEAST, BAR_MOST = 16, 40
GAP_LEAST, NAMES_LEAST = 22, 40  # cells for words in the place of lanes, for names by fate
TEXT_LEAST, TEXT_MOST = 8, 12  # cells for what a caller read


class Mailroom:
    """Draws a run's bags. `rows` limits how many (None: all); `numbers` are the requests' (from 0 where absent); `texts` are
    what callers read at each take, by request id, for screens with room for them."""

    def __init__(
        self,
        run: Run,
        rows: int | None = ROWS,
        numbers: Sequence[int] | None = None,
        texts: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.run = run
        self.ledger = Ledger(run, numbers, texts)
        self.rows = self.ledger.shortened(rows)

    @property
    def folded(self) -> bool:
        """Whether bags were left out."""
        return any(isinstance(row, Row) and row.why and row.bags for row in self.rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the view."""
        screen, bags = Screen.of(console, options), self.run.bags
        facts = [figures.count(len(bags), "bag"), figures.count(sum(b.sort.num_outputs for b in bags), "letter")]
        facts.append(figures.size(sum(bag.sort.body_size for bag in bags)))
        yield screen.title("mailroom", *facts, "times in ms")
        if any(isinstance(row, Row) for row in self.rows):
            yield from _Layout(self, screen).lines()
        else:
            yield screen.fit(Text("No bag was sorted in this run.", DIM))


class _Layout:
    """Who gets how much of the width: first the figures, then the mailboxes, then what is nice to have."""

    def __init__(self, view: Mailroom, screen: Screen) -> None:
        self.view, self.screen = view, screen
        self.held = [row for row in view.rows if isinstance(row, Row)]
        self.cells = {id(row): {} if row.why else view.ledger.cells(row) for row in self.held}
        self.drawn = [cell for cells in self.cells.values() for cell in cells.values()]
        self.figures = row_figures(view.run, self.held)
        self.columns: list[tuple[Column, int, dict[int, str]]] = []  # with its width and its text in each row, by id
        room = screen.width - sum(self._add(column, screen.width) for column in COLUMNS) - len(screen.glyphs.border) - 2
        self.names = sorted({number for cells in self.cells.values() for number in cells})
        self.lane = max([4, *(len(self.word(cell)) for cell in self.drawn)]) + 1
        self.lanes = bool(self.names) and len(self.names) * self.lane <= room
        mailboxes = max(GAP_LEAST, len(self.names) * self.lane) if self.lanes else NAMES_LEAST
        room -= mailboxes
        room -= self._add(WAIT, room)
        self.text = self._room_for_text(room + mailboxes)
        self.lane += self.text + 1 if self.text else 0
        room -= max(0, len(self.names) * self.lane - mailboxes) if self.lanes else 0
        bar = BAR_LEAST + 2 if room >= BAR_LEAST + 2 else 0
        for column in PLANS:
            if not (width := self._add(column, room - bar)):
                break
            room -= width
        self.bar = min(BAR_MOST, room - 2) if bar else 0
        totals = [sum(self.figures[id(row)].get(key, 0) for key in TIMED) for row in self.held if not row.why]
        self.scale = 1.25 * median(totals or [1])
        self.idle = False  # whether a row said that a request was under way without a letter

    def _room_for_text(self, room: int) -> int:
        """Cells for what callers read, in each lane; 0 where nobody wrote it down or there is too little room."""
        if not self.lanes or not any(cell.text for cell in self.drawn):
            return 0
        spare = room // len(self.names) - self.lane - 1
        return min(spare, TEXT_MOST) if spare >= TEXT_LEAST else 0

    def _add(self, column: Column, room: int) -> int:
        """Add a column where there is room for it; the cells that it takes."""
        texts = {}
        for row in self.held:
            value = self.figures[id(row)].get(column.key)
            absent = self.screen.glyphs.gap if row.why and row.bags and column is COLUMNS[0] else "-"
            texts[id(row)] = absent if value is None else column.text(value)
        width = max(len(column.top), len(column.name), *(len(text) for text in texts.values())) + 2
        if width > room:
            return 0
        self.columns.append((column, width, texts))
        return width

    def lines(self) -> Iterator[Text]:
        """Heading, rows, legend."""
        yield from self._heading()
        for row in self.view.rows:
            yield self._note(row) if isinstance(row, Note) else self._row(row)
        yield from self._legend()

    def _heading(self) -> Iterator[Text]:
        """Two lines: station codes, then names; the mailboxes' owners at the right."""
        top, names = Text(), Text()
        for column, width, _ in self.columns:
            top.append(column.top.rjust(width), column.style)
            names.append(column.name.rjust(width), column.style or DIM)
        if self.bar:
            top.append("  " + "S5 to S8".ljust(self.bar), DIM)
            names.append("  " + f"0 to {figures.span(self.scale)}".ljust(self.bar), DIM)
        border = f"  {self.screen.glyphs.border} "
        top.append(border, DIM).append("S9 mailbox", PROCESS_STYLES["frontend"])
        names.append(border, DIM)
        for number in self.names if self.lanes else []:
            names.append(request_name(number).ljust(self.lane), f"bold {request_style(number)}")
        yield self.screen.fit(top)
        yield self.screen.fit(names)

    def _row(self, row: Row) -> Text:
        """A bag, or those left out (dim, with their means)."""
        line = Text()
        for column, width, texts in self.columns:
            line.append(texts[id(row)].rjust(width), DIM if row.why else column.style)
        if self.bar:
            line.append("  ").append_text(self._bar(row))
        line.append(f"  {self.screen.glyphs.border} ", DIM)
        if row.why:
            line.append(f"{row.why}: {_account(row.bags)}" if row.mixed else row.why, DIM)
        elif not self.cells[id(row)]:
            line.append(_account(row.bags))
        else:
            line.append_text(self._in_lanes(row) if self.lanes else self._grouped(row))
        return self.screen.fit(line)

    def _bar(self, row: Row) -> Text:
        """The row's time, all rows on one scale: each part is as long as its station took."""
        parts = [round(self.figures[id(row)].get(key, 0)) for key in TIMED]
        cells = max(1, min(self.bar, round(sum(parts) / self.scale * self.bar)))
        beyond = sum(parts) > self.scale * 1.02
        line = Text()
        for key, part in zip(TIMED, split(parts, cells - beyond), strict=True):
            mark = self.screen.glyphs.bar if self.screen.colour else STOPS[key].code[1:] or "-"
            line.append(mark * part, PROCESS_STYLES[STOPS[key].process])
        if beyond:
            line.append(self.screen.glyphs.beyond, DIM)
        return line.append(" " * (self.bar - line.cell_len))

    def _note(self, note: Note) -> Text:
        """Something between the bags."""
        style = "" if note.request is None else request_style(note.request)
        mark = (f"  {self.screen.glyphs.bullet} ", ERROR if note.bad else DIM)
        return self.screen.fit(Text.assemble(mark, (self.screen.printable(note.text), style)))

    def word(self, cell: Cell) -> str:
        """A letter's fate in a word."""
        word = f"+{cell.stapled}" if cell.fate == rec.STAPLED else WORDS[cell.fate]
        return word + (self.screen.glyphs.end if cell.last else "")

    def _in_lanes(self, row: Row) -> Text:
        """A lane for each request, so that one reads down what came to it."""
        line = Text()
        for number in self.names:
            cell = self.cells[id(row)].get(number)
            if cell is None:
                idle = self._under_way(number, row)
                self.idle |= idle
                line.append((self.screen.glyphs.idle if idle else "").ljust(self.lane), DIM)
            else:
                line.append_text(self._cell(cell, number))
        return line

    def _cell(self, cell: Cell, number: int) -> Text:
        """The fate, and the text that the letter ended up as, where there is room."""
        line = Text().append(self.word(cell), FATE_STYLES[cell.fate] or request_style(number))
        if self.text and cell.text:
            read = self.screen.fit(Text(self.screen.printable(f"'{cell.text}'")), self.text)
            line.append(" " * (self.lane - self.text - 1 - line.cell_len)).append_text(read)
        return line.append(" " * (self.lane - line.cell_len))

    def _under_way(self, number: int, row: Row) -> bool:
        """Whether the request was open when the bag came."""
        request, bag = self.view.ledger.requests[number], row.bags[0]
        t = bag.process.wall(bag.sort.t_received)
        wall, close = request.process.wall, request.close
        return wall(request.accept.t) <= t and (close is None or t <= wall(close.t))

    def _grouped(self, row: Row) -> Text:
        """Too many for lanes: names by fate, the exceptions first."""
        by_word: dict[str, list[int]] = {}
        for number, cell in sorted(self.cells[id(row)].items()):
            by_word.setdefault(self.word(cell), []).append(number)
        line = Text()
        for word in sorted(by_word, key=lambda word: (word == WORDS[rec.PUT], word)):
            line.append(word + " ", STRONG).append(_ranges(by_word[word]) + "  ")
        return line

    def _legend(self) -> Iterator[Text]:
        """What the words mean, of those on the screen."""
        met, glyphs = {cell.fate for cell in self.drawn}, self.screen.glyphs
        drawn = "in its column's colour" if self.screen.colour else "by its number, - the wire"
        entries = (
            ("put", "laid in the mailbox", rec.PUT in met),
            ("+n", "stapled: n letters now hang on the one not taken yet", rec.STAPLED in met),
            ("kept", "kept back for a later letter", rec.KEPT_BACK in met),
            ("late", "nobody waits for it any more", LATE in met),
            (glyphs.end, "the answer's last", any(cell.last for cell in self.drawn)),
            (glyphs.idle, "under way, no letter in this bag", self.idle),
            (glyphs.gap, "bags left out, with the mean of each figure", self.view.folded),
            ("'...'", "what the caller read when it took the letter", bool(self.text)),
            ("wait", "the longest that a letter of this bag lay there", any(c is WAIT for c, _, _ in self.columns)),
            ("S5 to S8", f"the time at each station, {drawn}; {glyphs.beyond} it goes on", bool(self.bar)),
        )
        line = Text("  ")
        for word, meaning, shown in entries:
            if shown and line.cell_len + len(word) + len(meaning) + 3 > self.screen.width:
                yield self.screen.fit(line)
                line = Text("  ")
            if shown:
                line.append(word, STRONG).append(f" {meaning}  ", DIM)
        yield self.screen.fit(line)


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
    long = {id(part): f"{request_name(part[0])}-{request_name(part[-1])}" for part in parts if len(part) > 2}
    return " ".join(long.get(id(part)) or " ".join(request_name(number) for number in part) for part in parts)


if __name__ == "__main__":
    from vllm_lite.console.demo import canned_run
    from vllm_lite.console.theme import new_console

    new_console().print(Mailroom(canned_run(), rows=None if "--all" in sys.argv else ROWS))
