"""Which rows the mailroom has: the bags in order, what happened between them, and what is left out because it is all alike.

Process: whichever prints. Knows: the journey model. Does not know: columns, widths or colours.
Mirrors: nothing in vLLM.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from vllm_lite.console.figures import count, span
from vllm_lite.console.theme import request_name
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import LATE, Bag, Letter, Run, StepJourney
from vllm_lite.tracing.journey.times import ABORT, request_visits

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
    why: str = ""


@dataclass
class Note:
    """A line between the bags: something that was no letter."""

    text: str
    request: int | None = None  # whose colour it has
    bad: bool = False


Line = Row | Note
Texts = Mapping[str, Sequence[str]]  # what callers read at each take, by their own request ids


class Ledger:
    """The rows of a run, all of them. Its requests have these `numbers`, or are numbered from 0.

    Nothing is done for each letter before a row is drawn.
    """

    def __init__(self, run: Run, numbers: Sequence[int] | None = None, texts: Texts | None = None) -> None:
        self.requests = dict(zip(numbers or range(len(run.requests)), run.requests, strict=True))
        self.numbers = {id(request): number for number, request in self.requests.items()}
        finished = [r for r in run.requests if r.bags and r.close and r.close.outcome == "finished"]
        self._last = {id(r): (r.bags[-1], r.places[-1]) for r in finished}
        self._endings = {id(bag) for bag, _ in self._last.values()}
        self._texts: dict[tuple[int, int], str] = {}  # by id of the bag and place in it
        for request in run.requests:
            if read := (texts or {}).get(request.accept.external_id):
                letters = zip(request.bags, request.places, request.fates, strict=True)
                puts = [(id(bag), place) for bag, place, fate in letters if fate == rec.PUT]
                self._texts |= zip(puts, read, strict=False)  # the k-th take finds what the mailbox was empty for the k-th time
        self.rows = [line for _, _, line in sorted(self._moments(run), key=lambda moment: moment[:2])]

    def _moments(self, run: Run) -> Iterator[tuple[int, int, Line]]:
        """Each line with its time, and its place among those of the same time."""
        for bag in run.bags:
            yield bag.process.wall(bag.sort.t_received), 1, Row([bag], [bag.step] if bag.step else [])
        for step in run.steps:
            yield from self._step(step)
        for number, request in self.requests.items():
            visits = [visit for visit in request_visits(request) if visit[0] == ABORT] if request.aborts else ()
            for abort, (_, t0, t1) in zip(request.aborts, visits, strict=True):
                text = f"{request_name(number)} abort: {REASONS.get(abort.reason, abort.reason)}"
                text += f"; the core heard it {span(t1 - t0)} later" if t1 > t0 else ""
                text += f"; {count(len(request.late), 'late letter')}" if request.late else ""
                yield t0, 2, Note(text, number, bad=abort.reason != "stop_string")
        for process, death in run.deaths:
            yield process.wall(death.t), 3, Note(f"engine core {death.engine_index} died", bad=True)

    def _step(self, step: StepJourney) -> Iterator[tuple[int, int, Line]]:
        """Whom it preempted, and what it computed where no bag tells of it."""
        wall, plan = step.process.wall, step.schedule
        for number in (self.numbers.get(id(stay.request)) for stay in step.preempted):
            if number is not None:
                text = f"{request_name(number)} preempted: its KV blocks went to others, it queues and computes again"
                yield wall(plan.t0), 0, Note(text, number, bad=True)
        if not step.bags and not step.sends and step.execute is not None:
            names = " ".join(request_name(self.numbers[id(r)]) for r in step.requests if id(r) in self.numbers)
            granted = count(plan.num_tokens, "prompt token")
            yield wall(step.execute.t1), 0, Row([], [step], why=f"no letter yet: {granted} of {names}")

    def cells(self, row: Row) -> dict[int, Cell]:
        """What each request got from a row's bag, by its number."""
        letters = [(place, letter) for bag in row.bags for place, letter in enumerate(bag.letters)]
        found = [(self.numbers.get(id(letter.request)), place, letter) for place, letter in letters]
        return {number: self._cell(letter, place) for number, place, letter in found if number is not None}

    def _cell(self, letter: Letter, place: int) -> Cell:
        request, bag = letter.request, letter.bag
        assert request is not None
        if letter.fate == LATE:
            return Cell(LATE)
        pile = int(letter.fate == rec.STAPLED)
        index = request.letter_index(bag, place) - 1 if pile else -1
        while index >= 0 and (fate := request.bags[index].sort.fates[request.places[index]]) != rec.PUT:
            pile, index = pile + (fate == rec.STAPLED), index - 1
        last = self._last.get(id(request)) == (bag, place)
        return Cell(letter.fate, pile, last, self._texts.get((id(bag), place), ""))

    # ---- what is left out --------------------------------------------------------------------------------------------------

    def shortened(self, limit: int | None) -> list[Line]:
        """At most about `limit` rows (None: all): first runs of bags that tell the same shrink, then the middle goes. Rows that
        tell of more than ordinary letters stay, as long as they are few."""
        if limit is None or len(self.rows) <= limit:
            return list(self.rows)
        kept = self._telling()
        short: list[Line] = []
        for _, part in groupby(self.rows, lambda line: id(line) if id(line) in kept else self._tale(line)):
            alike = list(part)
            short += alike if len(alike) < ALIKE_FROM else [*alike[:3], _gap(alike[3:-2], "alike"), *alike[-2:]]
        if len(short) <= limit:
            return short
        head, tail = limit - limit // 3 - 1, len(short) - limit // 3
        middle: list[Line] = []
        for stays, part in groupby(short[head:tail], lambda line: id(line) in kept):
            lines = list(part)
            middle += lines if stays or len(lines) < 2 else [_gap(lines, "more")]
        return [*short[:head], *middle, *short[tail:]]

    def _telling(self) -> set[int]:
        """Ids of the rows that must stay: staples, late letters and events, or without the staples, whichever are few."""
        events = {id(line) for line in self.rows if isinstance(line, Note) or any(bag.late for bag in line.bags)}
        staples = {id(row) for row in self.rows if isinstance(row, Row) and any(rec.STAPLED in b.sort.fates for b in row.bags)}
        return next((found for found in (events | staples, events) if len(found) <= TELLING), set())

    def _tale(self, line: Line) -> object:
        """What a row tells: the same for bags that brought the same to the same requests, and were nobody's last."""
        if isinstance(line, Note) or any(id(bag) in self._endings for bag in line.bags):
            return id(line)
        letters = [
            (*zip(bag.members, bag.sort.fates, strict=False), *((late.request, LATE) for late in bag.late)) for bag in line.bags
        ]
        return [{request: fate for request, fate in bag if id(request) in self.numbers} for bag in letters]


def _gap(lines: Sequence[Line], how: str) -> Row:
    rows = [line for line in lines if isinstance(line, Row)]
    bags, steps = [bag for row in rows for bag in row.bags], [step for row in rows for step in row.steps]
    why = f"{len(bags or rows):,} {how}"
    why += f", {count(len(lines) - len(rows), 'event')}" if len(rows) < len(lines) else ""
    return Row(bags, steps, f"{why}: {account(bags)}" if how == "more" else why)


def account(bags: Sequence[Bag]) -> str:
    """What became of the letters of these bags, in words."""
    words = {rec.PUT: "put", rec.STAPLED: "stapled", rec.KEPT_BACK: "kept back", LATE: "late"}
    found = fates(bags)
    return ", ".join(f"{found[fate]:,} {word}" for fate, word in words.items() if found[fate]) or "no letter"


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
