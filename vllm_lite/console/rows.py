"""Which rows the mailroom has: the bags in order, what happened between them, and what is left out because it is all alike.

Process: whichever prints. Knows: the journey model. Does not know: columns, widths or colours.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vllm_lite.console.figures import count, span
from vllm_lite.console.theme import request_name
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import LATE, Bag, RequestJourney, Run, StepJourney

ALIKE_FROM = 8  # so many bags in a row that tell the same shrink to six rows
TELLING = 30  # so many rows with a staple, a late letter or an event are never left out
REASONS = {
    "client_disconnect": "caller left",
    "stop_string": "stop string found",
    "api": "abort() called",
    "shutdown": "engine shut down",
}


@dataclass(frozen=True)
class Cell:
    """What one request got from one bag. `stapled`: how many letters now hang on the one in the slot; `text`: what its
    caller read when it took that slot, where the callers' record says so."""

    fate: str
    stapled: int = 0
    last: bool = False
    text: str = ""


@dataclass
class Row:
    """One bag, or several that were left out (`why` says so then). `steps` are those it shows the times of."""

    bags: list[Bag]
    steps: list[StepJourney]
    cells: dict[int, Cell] = field(default_factory=dict)  # by number of the request in the run
    why: str = ""
    mixed: bool = False  # the bags left out are not alike

    @property
    def story(self) -> object:
        """Rows with the same story are alike."""
        return sorted((request, cell.fate, cell.last) for request, cell in self.cells.items()), bool(self.bags)


@dataclass
class Note:
    """A line between the bags: something that was no letter."""

    text: str
    request: int | None = None  # whose colour it has
    bad: bool = False


class Ledger:
    """The rows of a run, all of them. Its requests are numbered from `first`, or have these `numbers`.

    `texts` are what callers read at each take, by their own request id.
    """

    def __init__(
        self,
        run: Run,
        first: int = 0,
        texts: Mapping[str, Sequence[str]] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> None:
        self.requests = dict(zip(numbers or range(first, first + len(run.requests)), run.requests, strict=True))
        self._texts = {number: iter((texts or {}).get(r.accept.external_id, ())) for number, r in self.requests.items()}
        self.numbers = {id(request): number for number, request in self.requests.items()}
        self.piles: Counter[int] = Counter()
        self.rows: list[Row | Note] = []
        self._last = {n: r.letters.last for n, r in self.requests.items() if r.close and r.close.outcome == "finished"}
        moments: list[tuple[int, int, Row | Note]] = []
        moments += [(bag.process.wall(bag.sort.t_received), 1, self._bag(bag)) for bag in run.bags]
        for step in run.steps:
            moments += self._step(step)
        for request in run.requests:
            moments += [(request.process.wall(a.t), 2, self._abort(request, a)) for a in request.aborts]
        for process, death in run.deaths:
            moments.append((process.wall(death.t), 3, Note(f"engine core {death.engine_index} died", bad=True)))
        moments.sort(key=lambda moment: moment[:2])
        self.rows = [row for _, _, row in moments]

    def _bag(self, bag: Bag) -> Row:
        cells: dict[int, Cell] = {}
        for letter in bag.letters:
            if letter.request is None or (number := self.numbers.get(id(letter.request))) is None:
                continue
            text = ""
            if letter.fate == rec.STAPLED:
                self.piles[number] += 1
            elif letter.fate == rec.PUT:
                self.piles[number] = 0
                text = next(self._texts[number], "")  # the k-th put is what the k-th take finds
            cells[number] = Cell(letter.fate, self.piles[number], letter is self._last.get(number), text)
        return Row([bag], [bag.step] if bag.step else [], cells)

    def _step(self, step: StepJourney) -> list[tuple[int, int, Row | Note]]:
        wall, plan = step.process.wall, step.schedule
        found: list[tuple[int, int, Row | Note]] = []
        for stay in step.preempted:
            number = self.numbers.get(id(stay.request))
            if number is not None:
                text = f"{request_name(number)} preempted: its KV blocks went to others, it queues and computes again"
                found.append((wall(plan.t0), 0, Note(text, number, bad=True)))
        if not step.bags and not step.sends and step.execute is not None:
            names = [request_name(self.numbers[id(r)]) for r in step.requests if id(r) in self.numbers]
            granted = count(plan.num_tokens, "prompt token")
            found.append((wall(step.execute.t1), 0, Row([], [step], why=f"no letter yet: {granted} of {' '.join(names)}")))
        return found

    def _abort(self, request: RequestJourney, abort: rec.Abort) -> Note:
        number = self.numbers[id(request)]
        text = f"{request_name(number)} abort: {REASONS.get(abort.reason, abort.reason)}"
        heard = [p.wall(r.t) for p, r in request.abort_receipts if set(r.internal_ids) & set(abort.internal_ids)]
        if heard:
            text += f"; the core heard it {span(max(0, min(heard) - request.process.wall(abort.t)))} later"
        if request.late:
            text += f"; {count(len(request.late), 'late letter')}"
        return Note(text, number, bad=abort.reason != "stop_string")


def shorten(rows: Sequence[Row | Note], limit: int | None) -> list[Row | Note]:
    """At most about `limit` rows (None: all): first runs of bags that tell the same shrink, then the middle goes. Rows that
    tell of more than ordinary letters stay, as long as they are few."""
    if limit is None or len(rows) <= limit:
        return list(rows)
    kept = _telling(rows)
    short = [row for part in _parts(rows, kept) for row in _shrink(part)]
    if len(short) <= limit:
        return short
    head, tail = limit - limit // 3 - 1, limit // 3
    middle = _parts(short[head : len(short) - tail], kept, alike=False)
    return [*short[:head], *(row for part in middle for row in _fold(part)), *short[len(short) - tail :]]


def _telling(rows: Sequence[Row | Note]) -> set[int]:
    """Ids of the rows that must stay: staples, late letters and events, or without the staples, whichever are few."""
    for fates_told in ((rec.STAPLED, LATE), (LATE,)):
        found = {
            id(row) for row in rows if isinstance(row, Note) or any(cell.fate in fates_told for cell in row.cells.values())
        }
        if len(found) <= TELLING:
            return found
    return set()


def _parts(rows: Sequence[Row | Note], kept: set[int], *, alike: bool = True) -> list[list[Row | Note]]:
    """The rows in parts that may shrink to fewer: those of one story, or (not `alike`) all between two that must stay."""
    parts: list[list[Row | Note]] = []
    for row in rows:
        last = parts[-1][-1] if parts else None
        joins = last is not None and id(row) not in kept and id(last) not in kept
        if joins and alike:
            joins = isinstance(row, Row) and isinstance(last, Row) and row.story == last.story
        if joins:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts


def _shrink(alike: list[Row | Note]) -> list[Row | Note]:
    return alike if len(alike) < ALIKE_FROM else [*alike[:3], _gap(alike[3:-2], "alike"), *alike[-2:]]


def _fold(rows: list[Row | Note]) -> list[Row | Note]:
    return rows if len(rows) < 2 else [_gap(rows, "more")]


def _gap(rows: Sequence[Row | Note], how: str) -> Row:
    held = [row for row in rows if isinstance(row, Row)]
    bags = [bag for row in held for bag in row.bags]
    notes = f", {count(len(rows) - len(held), 'event')}" if len(held) < len(rows) else ""
    steps = [step for row in held for step in row.steps]
    return Row(bags, steps, mixed=how == "more", why=f"{len(bags):,} {how}{notes}")


def fates(bags: Sequence[Bag]) -> Counter[str]:
    """How many letters of these bags met which fate, from the bags' own counts."""
    found: Counter[str] = Counter()
    for bag in bags:
        sort = bag.sort
        found[rec.PUT] += sort.num_put
        found[rec.STAPLED] += sort.num_stapled
        found[rec.KEPT_BACK] += sort.num_kept_back
        found[LATE] += len(sort.late)
    return found
