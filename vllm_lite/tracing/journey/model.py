"""What happened in a run, as plain objects: processes, requests, steps and bags, each holding its records.

Process: readers (console, exporter, check). Knows: records and how they belong together. Does not know: files or spans.
Times in records are monotonic nanoseconds of their process's boot; `Process.wall()` makes them comparable across hosts.
Journeys point at each other all around, so that none may print what it holds.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.process import Process

T = TypeVar("T")
LATE = "l"  # a fourth fate beside records.PUT, STAPLED and KEPT_BACK: nobody waited for the letter any more


class Ends(list[T]):
    """A list that may be cut down to its first and last items; `skipped` counts what lay between.

    A stream of an hour then costs no more memory than one of a minute, and neither its first token nor its last is missing.
    """

    skipped = 0

    @property
    def total(self) -> int:
        """How many items there were."""
        return len(self) + self.skipped

    @property
    def last(self) -> T | None:
        """The very last item."""
        return self[-1] if self else None

    def cut(self, first: int, last: int) -> None:
        """Keep only so many items at each end."""
        if len(self) > first + last:
            self.skipped += len(self) - first - last
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
    links: dict[int, Any] = field(default_factory=dict)  # by tokens: what its steps link to it with, made once

    @property
    def t_end(self) -> int | None:
        """When it was over, None while it is not (or died with the process)."""
        return self.t_finished if self.t_finished is not None else self.leave.t if self.leave else None

    @property
    def shares(self) -> list[Share]:
        """Its part in every step, in order."""
        return [share for spell in self.spells for share in spell.shares]


class Take(NamedTuple):
    """The caller took a letter out of the mailbox, after it had lain there for `wait` ns."""

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
    position: int  # tokens of the request that came in letters before this one


@dataclass(slots=True, eq=False, repr=False)
class RequestJourney:
    """One sampled request as the front end knew it, with its stays in engine cores (one for each of n)."""

    process: Process
    accept: rec.Accept
    tokenise: rec.Tokenise | None = None
    posts: list[rec.Post] = field(default_factory=list)
    stays: list[Stay] = field(default_factory=list)
    letters: Ends[Letter] = field(default_factory=Ends)  # level 2 and up
    takes: Ends[Take] = field(default_factory=Ends)  # level 2 and up
    late: list[Letter] = field(default_factory=list)
    aborts: list[rec.Abort] = field(default_factory=list)
    abort_receipts: list[tuple[Process, rec.ReceiveAbort]] = field(default_factory=list)
    close: rec.Close | None = None
    num_tokens: int = 0  # in all its letters, late ones apart
    num_closes: int = 0  # should be one

    @property
    def receives(self) -> list[rec.Receive]:
        """What the engine core's input thread noted, one for each stay."""
        return [stay.receive for stay in self.stays if stay.receive is not None]

    @property
    def shares(self) -> list[Share]:
        """Its part in every step, sample after sample."""
        return [share for stay in self.stays for share in stay.shares]

    @property
    def steps(self) -> list[StepJourney]:
        """The steps it took part in, each once, in the order in which they ran."""
        unique = {id(step): step for stay in self.stays for spell in stay.spells for step in spell.steps}
        return sorted(unique.values(), key=lambda step: step.process.wall(step.schedule.t0))


@dataclass(eq=False, repr=False)
class StepJourney:
    """One step of an engine core that held a traced request."""

    process: Process
    schedule: rec.Schedule
    stays: list[tuple[Stay, int]] = field(default_factory=list)  # who took part, and the tokens granted
    preempted: list[Stay] = field(default_factory=list)
    execute: rec.Execute | None = None
    works: list[tuple[Process, rec.Work]] = field(default_factory=list)  # one for each rank
    update: rec.Update | None = None
    sends: list[rec.Send] = field(default_factory=list)  # one for each client that got a bag
    bags: list[Bag] = field(default_factory=list)  # those that were opened

    @property
    def index(self) -> int:
        """The engine core's count of its steps."""
        return self.schedule.step

    @property
    def work(self) -> rec.Work | None:
        """The first rank's view of the step."""
        return self.works[0][1] if self.works else None

    @property
    def t_end(self) -> int:
        """When its result was worked in, or the last that is known of it."""
        return (self.update or self.execute or self.schedule).t1

    @property
    def requests(self) -> list[RequestJourney]:
        """The traced requests in it, each once."""
        unique = {id(stay.request): stay.request for stay, _ in self.stays if stay.request is not None}
        return list(unique.values())

    def share(self, req: int) -> Share:
        """The part that the engine core's request `req` had in it."""
        return Share(self, self._granted[req], req in self.schedule.prefills)

    @cached_property
    def _granted(self) -> dict[int, int]:
        return dict(zip(self.schedule.reqs, self.schedule.tokens, strict=True))


@dataclass(slots=True, eq=False, repr=False)
class Bag:
    """One bag as the front end sorted it. `send` and `step` are None where they are not traced or were lost."""

    process: Process
    sort: rec.Sort
    letters: list[Letter] = field(default_factory=list)  # level 2 and up; late ones at every level, last
    step: StepJourney | None = None
    send: rec.Send | None = None
    aborts: list[tuple[RequestJourney, rec.Abort]] = field(default_factory=list)  # stop strings found while sorting


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
    torn: int = 0  # spools whose last frame was cut short
    unknown: int = 0  # records of kinds that this version does not know
    unclaimed: int = 0  # records whose beginning is lost
