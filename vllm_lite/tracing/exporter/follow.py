"""Follows a growing run and gives out each trace once it is whole.

Process: exporter. Knows: reader, assembler, span builders; when a request or a step is over. Does not know: OTLP.
Memory is bounded: what is done is forgotten, a long request keeps its ends, and who is not asked does not read.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vllm_lite.tracing.journey import RequestJourney, StepJourney
from vllm_lite.tracing.journey.assembler import EARLY, Assembler
from vllm_lite.tracing.reader import RunReader
from vllm_lite.tracing.spans import Span, bag_spans, life_spans, request_spans, stay_spans, step_spans
from vllm_lite.tracing.spans.stay import STEP_ENDS

POLL_BYTES = 1 << 20  # read between two looks at what is whole
SETTLE_S = 1.0  # between what ends a trace and its export: for a late letter, or a record in another process's spool
PATIENCE_S = 10.0  # for a part that should come but does not, its writer having died perhaps


class Follower:
    """`poll` again and again; `now` is any steady clock in seconds."""

    def __init__(self, run_dir: Path) -> None:
        self.reader = RunReader(run_dir)
        self.assembler = Assembler(keep=STEP_ENDS)
        self.num_records = 0
        self._ended: dict[int, float] = {}  # id of a request or step -> when its end was seen
        self._born: dict[int, int] = {}  # id of a request or step that is still here -> number of the poll that found it
        self.polls = 0  # how often `poll` was called
        self._accepted: int | None = None  # wall clock of the first request
        self._start_up_due: float | None = None
        self._started = False  # the start-up trace is out; phases that still come are traces of their own

    def poll(self, now: float, final: bool = False) -> Iterator[list[Span]]:
        """Read on, and give out the traces that are whole now; with `final` also those that never will be."""
        self.polls += 1
        for process, record in self.reader.poll(POLL_BYTES):
            self.assembler.feed(process, record)
            self.num_records += 1
        self.reader.look_alive()
        yield from self._life(now, final)
        for request in list(self.assembler.requests.values()):
            if self._due(request, request.close is not None, _request_whole(request), now) or final:
                yield request_spans(request)
                self._forget_request(request)
        for step in list(self.assembler.steps.values()):
            if self._due(step, step.update is not None, _step_whole(step), now) or final:
                yield step_spans(step)
                self._forget_step(step)
        waiting = [bag for bag in self.assembler.bags if bag.step is None and bag.sort.trace is not None]
        self.assembler.bags = waiting[-EARLY:]
        if final:
            self.assembler.finish()
            for stay in self.assembler.stays.values():
                yield stay_spans(stay)
            for bag in self.assembler.bags:
                yield bag_spans(bag)

    @property
    def behind(self) -> bool:
        """There is more to read than the last poll took."""
        return self.reader.behind

    @property
    def oldest(self) -> int:
        """The poll that found the oldest request or step still here; records read before it are no longer needed."""
        return min(self._born.values(), default=self.polls + 1)

    def _due(self, item: RequestJourney | StepJourney, ended: bool, whole: bool, now: float) -> bool:
        self._born.setdefault(id(item), self.polls)
        if not ended:
            return False
        waited = now - self._ended.setdefault(id(item), now)
        return waited >= (SETTLE_S if whole else PATIENCE_S)

    def _life(self, now: float, final: bool) -> Iterator[list[Span]]:
        """Start-up as one trace, once the first request shows that it is over; later phases and deaths as they come."""
        assembler = self.assembler
        if self._accepted is None and assembler.requests:
            self._accepted = min(request.process.wall(request.accept.t) for request in assembler.requests.values())
            self._start_up_due = now + SETTLE_S
        if not final and (self._start_up_due is None or now < self._start_up_due):
            return
        phases, deaths = assembler.phases, assembler.deaths
        assembler.phases, assembler.deaths = [], []
        yield list(life_spans(phases, deaths, 0 if self._started else self._accepted))
        self._started = True

    def _forget_request(self, request: RequestJourney) -> None:
        self.assembler.forget_request(request)
        self._forget(request)

    def _forget_step(self, step: StepJourney) -> None:
        self.assembler.forget_step(step)
        self._forget(step)

    def _forget(self, item: RequestJourney | StepJourney) -> None:
        self._ended.pop(id(item), None)
        self._born.pop(id(item), None)


def _request_whole(request: RequestJourney) -> bool:
    """Every post led to a stay that is over, every abort was received, or nobody is left to do it."""
    ids = {internal_id for abort in request.aborts for internal_id in abort.internal_ids}
    received = {internal_id for _, receipt in request.abort_receipts for internal_id in receipt.internal_ids}
    over = [stay for stay in request.stays if stay.t_end is not None or stay.process.died]
    died = any(stay.process.died for stay in request.stays)
    return len(over) == len(request.posts) and (died or received.issuperset(ids))


def _step_whole(step: StepJourney) -> bool:
    """As many bags were sent as the step made, and all of them were sorted."""
    update = step.update
    if update is None:
        return False
    sent = len(step.sends) if update.num_bags < 0 else update.num_bags
    return len(step.sends) == sent and len(step.bags) >= sent
