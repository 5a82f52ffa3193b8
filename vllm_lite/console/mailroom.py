"""The mailroom view: one row for each bag, where its time went from S5 to S8, and into whose mailbox its letters came.

Process: whichever prints. Knows: the journey model, the screen. Does not know: files, engines.
`python -m vllm_lite.console.mailroom` shows it with a canned run.
Mirrors: nothing in vLLM.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import median

from rich.text import Text

from vllm_lite.console.columns import BAG, BYTES, COLUMNS, CORE, PLANS, TIMED, WAIT, Column, longest_waits, row_figures
from vllm_lite.console.figures import count, size, span, split
from vllm_lite.console.passage import STOPS, request_end
from vllm_lite.console.rows import Cell, Ledger, Note, Row, Texts, account
from vllm_lite.console.theme import DIM, ERROR, FATE_STYLES, PROCESS_STYLES, STRONG, Screen, View, request_name, request_style
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import LATE, Run

ROWS = 24  # shown before the middle is left out
WORDS = {rec.PUT: "put", rec.KEPT_BACK: "kept", LATE: "late"}
NARROW = 100  # below this width the bytes give way to the wait
BAR_LEAST, BAR_MOST = 16, 40
GAP_LEAST, NAMES_LEAST = 17, 40  # cells for words in the place of lanes, for names by fate
TEXT_LEAST, TEXT_MOST = 8, 32  # cells for what a caller read


class Mailroom(View):
    """Draws a run's bags. `rows` limits how many (None: all); `numbers` are the requests' (from 0 where absent); `texts` are
    what callers read at each take, by request id, for screens with room for them."""

    def __init__(
        self, run: Run, rows: int | None = ROWS, numbers: Sequence[int] | None = None, texts: Texts | None = None
    ) -> None:
        self.run = run
        self.ledger = Ledger(run, numbers, texts)
        self.rows = self.ledger.shortened(rows)

    @property
    def folded(self) -> bool:
        """Whether bags were left out."""
        return any(isinstance(row, Row) and row.why and row.bags for row in self.rows)

    def _lines(self, screen: Screen) -> Iterator[Text]:
        bags = self.run.bags
        letters, octets = sum(bag.sort.num_outputs for bag in bags), sum(bag.sort.body_size for bag in bags)
        yield screen.title("mailroom", count(len(bags), "bag"), count(letters, "letter"), size(octets), "times in ms")
        if any(isinstance(row, Row) for row in self.rows):
            yield from _Layout(self, screen).lines()
        else:
            yield Text("No bag was sorted in this run.", DIM)


class _Layout:
    """Who gets how much of the width: first the figures, then the mailboxes, then what is nice to have."""

    def __init__(self, view: Mailroom, screen: Screen) -> None:
        self.view, self.screen, self.glyphs = view, screen, screen.glyphs
        self.held = [row for row in view.rows if isinstance(row, Row)]
        self.figures = {id(row): row_figures(row) for row in self.held}
        self.cells = {id(row): {} if row.why else view.ledger.cells(row) for row in self.held}
        self.drawn = [cell for cells in self.cells.values() for cell in cells.values()]
        self.names = sorted({number for cells in self.cells.values() for number in cells})
        self.columns: dict[Column, int] = {}  # with its width
        columns = [column for column in COLUMNS if column is not BYTES or screen.width >= NARROW]
        room = screen.width - len(self.glyphs.border) - 2
        if sum(process.role == "engine-core" for process in view.run.processes) > 1:
            columns.insert(1, CORE)
        for column in columns:
            room -= self._add(column, screen.width)
        self.lane = max([4, *(len(self._word(cell)) for cell in self.drawn)]) + 1
        self.lanes = bool(self.names) and len(self.names) * self.lane <= room
        mailboxes = max(GAP_LEAST, len(self.names) * self.lane) if self.lanes else NAMES_LEAST
        room -= mailboxes
        if room >= 2 + len(WAIT.name):
            for row_id, wait in longest_waits(view.run, self.held).items():
                self.figures[row_id]["wait"] = wait
            room -= self._add(WAIT, room)
        self.text = 0  # cells for what callers read, in each lane
        if self.lanes and any(cell.text for cell in self.drawn):
            spare = (room + mailboxes) // len(self.names) - self.lane - 1
            longest = max(len(self._read(cell)) for cell in self.drawn)
            self.text = min(spare, TEXT_MOST, longest) if spare >= TEXT_LEAST else 0
            self.lane += self.text + 1 if self.text else 0
            room -= max(0, len(self.names) * self.lane - mailboxes)
        bar = BAR_LEAST + 2 if room >= BAR_LEAST + 2 else 0
        for column in PLANS:
            width = self._add(column, room - bar)
            room -= width
            if not width:
                break
        self.bar = min(BAR_MOST, room - 2) if bar else 0
        self.scale = 1.25 * median([sum(self._times(row)) for row in self.held if not row.why] or [1])
        self.idle = False  # whether a row said that a request was under way without a letter

    def _add(self, column: Column, room: int) -> int:
        """Add a column where there is room for it; the cells that it takes."""
        width = 2 + max(len(column.top), len(column.name), *(len(self._figure(column, row)) for row in self.held))
        if width > room:
            return 0
        self.columns[column] = width
        return width

    def _figure(self, column: Column, row: Row) -> str:
        value = self.figures[id(row)].get(column.key)
        if value is None:
            return self.glyphs.gap if row.why and row.bags and column is BAG else "-"
        return column.text(value)

    def _times(self, row: Row) -> list[float]:
        return [self.figures[id(row)].get(key, 0) for key in TIMED]

    def lines(self) -> Iterator[Text]:
        """Heading, rows, legend."""
        yield from self._heading()
        for row in self.view.rows:
            yield self._note(row) if isinstance(row, Note) else self._row(row)
        yield from self._legend()

    def _heading(self) -> Iterator[Text]:
        """Two lines: station codes, then names; the mailboxes' owners at the right."""
        top, names, border = Text(), Text(), f"  {self.glyphs.border} "
        for column, width in self.columns.items():
            top.append(column.top.rjust(width), column.style)
            names.append(column.name.rjust(width), column.style or DIM)
        if self.bar:
            top.append("  " + "S5 to S8".ljust(self.bar), DIM)
            names.append("  " + f"0 to {span(self.scale)}".ljust(self.bar), DIM)
        yield top.append(border, DIM).append("S9 mailbox", PROCESS_STYLES["frontend"])
        names.append(border, DIM)
        for number in self.names if self.lanes else ():
            names.append(request_name(number).ljust(self.lane), f"bold {request_style(number)}")
        yield names

    def _note(self, note: Note) -> Text:
        style = "" if note.request is None else request_style(note.request)
        mark = (f"  {self.glyphs.bullet} ", ERROR if note.bad else DIM)
        return Text.assemble(mark, (self.screen.printable(note.text), style))

    def _row(self, row: Row) -> Text:
        """A bag, or those left out (dim, with their means)."""
        line = Text()
        for column, width in self.columns.items():
            line.append(self._figure(column, row).rjust(width), DIM if row.why else column.style)
        if self.bar:
            line.append("  ").append_text(self._bar(self._times(row)))
        line.append(f"  {self.glyphs.border} ", DIM)
        if row.why:
            return line.append(row.why, DIM)
        if not self.cells[id(row)]:
            return line.append(account(row.bags))
        return line.append_text(self._in_lanes(row) if self.lanes else self._grouped(row))

    def _bar(self, times: Sequence[float]) -> Text:
        """A row's time, all rows on one scale: each part is as long as its station took."""
        parts = [round(time) for time in times]
        cells = max(1, min(self.bar, round(sum(parts) / self.scale * self.bar)))
        beyond = sum(parts) > self.scale * 1.02
        line = Text()
        for key, part in zip(TIMED, split(parts, cells - beyond), strict=True):
            mark = self.glyphs.bar if self.screen.colour else STOPS[key].code[1:] or "-"
            line.append(mark * part, PROCESS_STYLES[STOPS[key].process])
        line.append(self.glyphs.beyond if beyond else "", DIM)
        return line.append(" " * (self.bar - line.cell_len))

    def _word(self, cell: Cell) -> str:
        """A letter's fate in a word."""
        word = f"+{cell.stapled}" if cell.fate == rec.STAPLED else WORDS[cell.fate]
        return word + (self.glyphs.end if cell.last else "")

    def _read(self, cell: Cell) -> str:
        """What its caller read, on one line."""
        return self.screen.printable(f"'{cell.text}'")

    def _in_lanes(self, row: Row) -> Text:
        """A lane for each request, so that one reads down what came to it, and what its caller read where there is room."""
        line, bag = Text(), row.bags[0]
        t = bag.process.wall(bag.sort.t_received)
        for number in self.names:
            cell, request = self.cells[id(row)].get(number), self.view.ledger.requests[number]
            if cell is None:
                idle = request.process.wall(request.accept.t) <= t <= request_end(request)
                self.idle |= idle
                line.append((self.glyphs.idle if idle else "").ljust(self.lane), DIM)
                continue
            lane = Text().append(self._word(cell), FATE_STYLES[cell.fate] or request_style(number))
            if self.text and cell.text:
                read = self.screen.fit(Text(self._read(cell)), self.text)
                lane.append(" " * (self.lane - self.text - 1 - lane.cell_len)).append_text(read)
            line.append_text(lane.append(" " * (self.lane - lane.cell_len)))
        return line

    def _grouped(self, row: Row) -> Text:
        """Too many for lanes: names by fate, the exceptions first."""
        by_word: dict[str, list[int]] = defaultdict(list)
        for number, cell in sorted(self.cells[id(row)].items()):
            by_word[self._word(cell)].append(number)
        line = Text()
        for word in sorted(by_word, key=lambda word: (word == WORDS[rec.PUT], word)):
            line.append(word + " ", STRONG).append(_ranges(by_word[word]) + "  ")
        return line

    def _legend(self) -> Iterator[Text]:
        """What the words mean, of those on the screen."""
        met, glyphs = {cell.fate for cell in self.drawn}, self.glyphs
        drawn = "in its column's colour" if self.screen.colour else "by its number, - the wire"
        but = ", but the longest wait" if WAIT in self.columns else ""
        entries = (
            ("put", "laid in the mailbox", rec.PUT in met),
            ("+n", "stapled: n letters now hang on the one not taken yet", rec.STAPLED in met),
            ("kept", "kept back for a later letter", rec.KEPT_BACK in met),
            ("late", "nobody waits for it any more", LATE in met),
            (glyphs.end, "the answer's last", any(cell.last for cell in self.drawn)),
            (glyphs.idle, "under way, no letter in this bag", self.idle),
            (glyphs.gap, f"bags left out, with the mean of each figure{but}", self.view.folded),
            ("'...'", "what the caller read when it took the letter", self.text),
            ("wait", "the longest that a letter of the row lay there", WAIT in self.columns),
            ("S5 to S8", f"the time at each station, {drawn}; {glyphs.beyond} it goes on", self.bar),
        )
        line = Text("  ")
        for word, meaning in ((word, meaning) for word, meaning, shown in entries if shown):
            if line.cell_len + len(word) + len(meaning) + 3 > self.screen.width:
                yield line
                line = Text("  ")
            line.append(word, STRONG).append(f" {meaning}  ", DIM)
        yield line


def _ranges(numbers: Sequence[int]) -> str:
    """Names in a row joined to ranges: "A-D F"."""
    parts: list[str] = []
    for _, neighbours in groupby(enumerate(numbers), lambda item: item[1] - item[0]):  # the distance grows at a gap
        names = [request_name(number) for _, number in neighbours]
        parts += names if len(names) < 3 else [f"{names[0]}-{names[-1]}"]
    return " ".join(parts)


if __name__ == "__main__":
    from vllm_lite.console.demo import canned_run, show

    show(Mailroom(canned_run(), rows=None if "--all" in sys.argv else ROWS))
