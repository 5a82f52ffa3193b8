"""What happened in a run, as plain objects: processes, requests, steps and bags, each holding its records.

Process: readers (console, exporter, check). Knows: records and how they belong together. Does not know: files or spans.
Times in records are monotonic nanoseconds of their process's boot; `Process.wall()` makes them comparable across hosts.
Journeys point at each other all around, so that none may print what it holds.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, repeat, takewhile
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.context import parse_traceparent
from vllm_lite.tracing.process import Process

T = TypeVar("T")
LATE = "l"  # a fourth fate beside records.PUT, STAPLED and KEPT_BACK: nobody waited for the letter any more


class Ends(list[T]):
    """A list that may be cut down to its first and last items; `skipped` counts what lay between, behind the first `gap`.

    A stream of an hour then costs no more memory than one of a minute, and neither its first token nor its last is missing.
    """

    skipped = gap = 0

    @property
    def total(self) -> int:
        """How many items there were."""
        return len(self) + self.skipped

    def cut(self, first: int, last: int) -> None:
        """Keep only so many items at each end."""
        if len(self) > first + last:
            self.skipped, self.gap = self.total - first - last, first
            del self[first : len(self) - last]


class Share(NamedTuple):
    """A request's part in one step."""

    step: StepJourney
    tokens: int
    prefill: bool  # it still computed its prompt


@dataclass(slots=True, eq=False, repr=False)
class Spell:
    """A request's way from the waiting queue through its steps, to its end or to the preemption that sends it back."""

    req: int  # the engine core's number for it
    t_queued: int | None = None  # None where the record that says so is lost
    steps: Ends[StepJourney] = field(default_factory=Ends)
    t_preempted: int | None = None

    @property
    def shares(self) -> list[Share]:
        """Its part in each step."""
        return [step.share(self.req) for step in self.steps]

    @property
    def prefills(self) -> list[Share]:
        """Its first parts, those that compute the prompt."""
        return list(takewhile(lambda share: share.prefill, (step.share(self.req) for step in self.steps)))

    @property
    def t_scheduled(self) -> int | None:
        """Start of the first step it takes part in."""
        return self.steps[0].schedule.t0 if self.steps else None

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache spared it."""
        return dict(self.steps[0].schedule.new).get(self.req, 0) if self.steps else 0


@dataclass(slots=True, eq=False, repr=False)
class Stay:
    """One internal request's time in an engine core: from ADD to its finish in a step, or to its leave outside one."""

    process: Process
    req: int  # the engine core's number for it
    spells: list[Spell]
    receive: rec.Receive | None = None
    request: RequestJourney | None = None
    post: rec.Post | None = None
    finish_reason: str | None = None
    t_finished: int | None = None
    leave: rec.Leave | None = None
    num_refused: int = 0  # how often blocks could not be had before its last admission
    num_stale: int = 0  # tokens that were made when it was gone
    link: Any = None  # what a step links to it with that grants it one token, made once

    @property
    def t_end(self) -> int | None:
        """When it was over, None while it is not (or died with the process)."""
        return self.t_finished if self.t_finished is not None else self.leave.t if self.leave else None


class Take(NamedTuple):
    """The caller took what lay in the mailbox, `wait` ns after the slice that put the first of it there was sorted."""

    t: int
    tokens: int
    wait: int


class Letter(NamedTuple):
    """One row of a bag. `request` is None where it is not traced or not known."""

    request: RequestJourney | None
    bag: Bag
    tokens: int
    fate: str  # records.PUT | STAPLED | KEPT_BACK, or LATE
    slice: int  # index into bag.sort.slices


@dataclass(slots=True, eq=False, repr=False)
class RequestJourney:
    """One sampled request as the front end knew it, with its stays in engine cores (one for each of n)."""

    process: Process
    accept: rec.Accept
    tokenised: list[rec.Tokenise] = field(default_factory=list)  # one, or as many as the prompt had parts that came one by one
    posts: list[rec.Post] = field(default_factory=list)
    stays: list[Stay] = field(default_factory=list)
    # From level 2: which bags its letters lay in, at which places there, and when its caller took some. There is one for each
    # token and most are never looked at: as plain columns they cost little, and a run of a million tokens is open in a second.
    bags: Ends[Bag] = field(default_factory=Ends)
    places: Ends[int] = field(default_factory=Ends)
    t_takes: Ends[int] = field(default_factory=Ends)
    taken: Ends[int] = field(default_factory=Ends)  # tokens of each take, of a request with several answers
    farewells: list[rec.Farewell] = field(default_factory=list)  # level 2 and up
    late: list[Letter] = field(default_factory=list)
    aborts: list[rec.Abort] = field(default_factory=list)
    abort_receipts: list[tuple[Process, rec.ReceiveAbort]] = field(default_factory=list)
    close: rec.Close | None = None
    num_tokens: int = 0  # in all its letters, late ones apart
    num_closes: int = 0  # should be one

    def cut(self, keep: int) -> None:
        """Of one that goes on for long, keep `keep` items at each end; below level 3 two of its decode steps are enough."""
        if max(len(self.bags), len(self.t_takes)) > 2 * keep:
            for column in (self.bags, self.places, self.t_takes, self.taken):
                column.cut(keep, keep)
        for stay in self.stays:
            if len(stay.spells[-1].steps) > 2 * keep:
                ends = keep if self.accept.level > 2 else 1
                stay.spells[-1].steps.cut(len(stay.spells[-1].prefills) + ends, ends)

    @property
    def letters(self) -> list[Letter]:
        """Its letters, late ones apart."""
        return [bag.letters[place] for bag, place in zip(self.bags, self.places, strict=True)]

    @property
    def fates(self) -> str:
        """Its letters' fates."""
        return "".join([bag.sort.fates[place] for bag, place in zip(self.bags, self.places, strict=True)])

    @property
    def rows(self) -> list[tuple[int, int, str]]:
        """Of each of its letters: when its slice was done, and its caller could take it; its tokens; its fate."""
        places = zip(self.bags, self.places, strict=True)
        return [(bag.t_sorted[place], bag.sort.tokens[place], bag.sort.fates[place]) for bag, place in places]

    @property
    def _arrivals(self) -> list[tuple[int, int, str]]:
        """Its rows, and the farewells that came in no bag."""
        return sorted([*self.rows, *((last.t, 0, last.fate) for last in self.farewells)]) if self.farewells else self.rows

    def letter_index(self, bag: Bag, place: int) -> int:
        """Which of its letters lay at `place` in `bag`; -1 for one that was cut away."""
        first = bisect_left(self.bags, bag.sort.bag, key=lambda other: other.sort.bag)
        found = (i for i in range(first, len(self.bags)) if self.bags[i] is bag and self.places[i] == place)
        return next(found, -1)

    @property
    def takes(self) -> list[Take]:
        """What its caller took. Where that is not written down, the letters sorted before it, back to the take before; those
        kept back come with the next one that is put. The first take behind a gap may then be told too low."""
        if self.taken:
            return list(map(Take, self.t_takes, self.taken, self.waits))
        takes, letters = list[Take](), self._arrivals
        index = kept_back = 0
        for t in self.t_takes:
            t_put, tokens = t, 0
            while index < len(letters) and letters[index][0] <= t:
                t_sorted, num_new, fate = letters[index]
                kept_back += num_new
                if fate != rec.KEPT_BACK:
                    tokens, kept_back = tokens + kept_back, 0
                if fate == rec.PUT:
                    t_put = t_sorted
                index += 1
            takes.append(Take(t, tokens, t - t_put))
        return takes

    @property
    def waits(self) -> list[int]:
        """How long what each take found had been waiting: since the last put before it. 0 where single letters were not
        recorded just then."""
        puts = [t for t, _, fate in self._arrivals if fate == rec.PUT]
        before = [0, *(bisect_right(puts, t) for t in self.t_takes)]
        spans = zip(self.t_takes, pairwise(before), strict=True)
        return [t - puts[last - 1] if last > had else 0 for t, (had, last) in spans]

    @property
    def internal_ids(self) -> list[str]:
        """The engine's ids of it, one for each of n; a session's parts share theirs."""
        return list(dict.fromkeys(post.internal_id for post in self.posts))

    @property
    def has_samples(self) -> bool:
        """Whether it asked for several answers."""
        return len(self.posts) > 1 and self.posts[0].internal_id != self.posts[1].internal_id

    @property
    def steps(self) -> list[StepJourney]:
        """The steps it took part in, each once, in the order in which they ran."""
        unique = {id(step): step for stay in self.stays for spell in stay.spells for step in spell.steps}
        return sorted(unique.values(), key=lambda step: step.process.wall(step.schedule.t0))


@dataclass(slots=True, eq=False, repr=False)
class StepJourney:
    """One step of an engine core that held a traced request."""

    process: Process
    schedule: rec.Schedule
    members: list[Stay] = field(default_factory=list)  # who took part, beside schedule.reqs
    preempted: list[Stay] = field(default_factory=list)
    execute: rec.Execute | None = None
    works: list[tuple[Process, rec.Work]] = field(default_factory=list)  # one for each rank
    update: rec.Update | None = None
    sends: list[rec.Send] = field(default_factory=list)  # one for each client that got a bag
    bags: list[Bag] = field(default_factory=list)  # those that were opened
    links: dict[int, Any] = field(default_factory=dict)  # by tokens: what its requests link to it with, made once

    @property
    def index(self) -> int:
        """The engine core's count of its steps."""
        return self.schedule.step

    @property
    def t_end(self) -> int:
        """When its result was worked in, or the last that is known of it."""
        return (self.update or self.execute or self.schedule).t1

    @property
    def requests(self) -> list[RequestJourney]:
        """The traced requests in it, each once."""
        return list(dict.fromkeys(stay.request for stay in self.members if stay.request is not None))

    def share(self, req: int) -> Share:
        """The part that the engine core's request `req` had in it."""
        reqs = self.schedule.reqs
        place = bisect_left(reqs, req)  # they come in the order in which they arrived, mostly
        if place == len(reqs) or reqs[place] != req:
            place = reqs.index(req)
        return Share(self, self.schedule.tokens[place], req in self.schedule.prefills)


@dataclass(eq=False, repr=False)
class Bag:
    """One bag as the front end sorted it. `step` is None where it was not traced or its record was lost."""

    process: Process
    sort: rec.Sort
    members: list[RequestJourney | None] = field(default_factory=list)  # whose letters, beside sort.reqs
    late: list[Letter] = field(default_factory=list)  # as if they had been in the last slice
    step: StepJourney | None = None
    aborts: list[tuple[RequestJourney, rec.Abort]] = field(default_factory=list)  # stop strings found while sorting

    @property
    def send(self) -> rec.Send | None:
        """How it left the engine core: the record that its traceparent names, None where that was lost."""
        sender = parse_traceparent(self.sort.trace)
        sends = self.step.sends if self.step and sender else ()
        return next((send for send in sends if sender and send.span_id == sender.span_id), None)

    @cached_property
    def slices(self) -> list[int]:
        """Which slice each letter lay in that was not late; the last one, where the slices do not add up."""
        if not self.sort.reqs:
            return []
        sizes = [size - gone for (_, _, size), gone in zip(self.sort.slices, self.sort.gone or repeat(0), strict=False)]
        found = [index for index, size in enumerate(sizes) for _ in range(size)]
        return found + [max(len(sizes) - 1, 0)] * (len(self.sort.reqs) - len(found))

    @cached_property
    def t_sorted(self) -> list[int]:
        """When each letter's slice was done, and its caller could take it."""
        done = [t1 for _, t1, _ in self.sort.slices] or [self.sort.t_done]
        return [done[index] for index in self.slices]

    @cached_property
    def letters(self) -> list[Letter]:
        """From level 2 on its letters, in order; at every level the late ones, last."""
        sort = self.sort
        rows = zip(self.members, sort.tokens, sort.fates, self.slices, strict=False)
        return [Letter(request, self, tokens, fate, index) for request, tokens, fate, index in rows] + self.late


@dataclass(slots=True, eq=False, repr=False)
class UtilityCall:
    """A call of an engine core's method: the caller's half and the engine core's, of which one may be lost."""

    call: tuple[Process, rec.Call] | None = None
    serve: tuple[Process, rec.Serve] | None = None

    @property
    def told(self) -> rec.Call | rec.Serve:
        """The caller's half, where it is there."""
        process_and_half = self.call or self.serve
        assert process_and_half is not None
        return process_and_half[1]


@dataclass(slots=True, eq=False, repr=False)
class Run:
    """All that the spools of one run directory tell, in the order of time."""

    path: Path
    processes: list[Process] = field(default_factory=list)
    requests: list[RequestJourney] = field(default_factory=list)
    steps: list[StepJourney] = field(default_factory=list)
    bags: list[Bag] = field(default_factory=list)
    strays: list[Stay] = field(default_factory=list)  # in an engine core, but of no known request
    phases: list[tuple[Process, rec.Phase]] = field(default_factory=list)
    deaths: list[tuple[Process, rec.EngineDead]] = field(default_factory=list)
    dropped: list[tuple[Process, rec.Dropped]] = field(default_factory=list)
    calls: list[UtilityCall] = field(default_factory=list)
    torn: int = 0  # spools whose last frame was cut short
    unknown: int = 0  # records of kinds that this version does not know
    unclaimed: int = 0  # records whose beginning is lost
