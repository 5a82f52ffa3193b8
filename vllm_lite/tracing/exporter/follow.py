"""Follows a growing run, gives out each trace once it is whole, and removes segments whose spans have all arrived.

Process: exporter. Knows: reader, assembler, span builders; when a request or a step is over. Does not know: OTLP.
Memory is bounded: what is done is forgotten, a long request keeps its ends, and who is not asked does not read.
Mirrors: nothing in vLLM.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from vllm_lite.tracing.journey import RequestJourney, Stay, StepJourney
from vllm_lite.tracing.journey.assembler import EARLY, Assembler
from vllm_lite.tracing.journey.model import UtilityCall
from vllm_lite.tracing.reader import RunReader
from vllm_lite.tracing.spans import Span, bag_spans, call_spans, life_spans, request_spans, stay_spans, step_spans
from vllm_lite.tracing.spans.stay import STEP_ENDS

Journey = TypeVar("Journey", RequestJourney, StepJourney, UtilityCall)
POLL_BYTES = 1 << 20  # read between two looks at what is whole
SETTLE_S = 1.0  # between what ends a trace and its export: for a late letter, or a record in another process's spool
START = "engine.start"  # the front end's last phase of a start-up, which holds all others
PATIENCE_S = 10.0  # for a part that should come but does not, its writer having died perhaps


class Follower:
    """`poll` again and again; `now` is any steady clock in seconds."""

    def __init__(self, run_dir: Path) -> None:
        self.reader = RunReader(run_dir)
        self.assembler = Assembler()
        self.failures: list[str] = []  # what kept a trace from being made
        self.polls = 0  # how often `poll` was called
        self._born: dict[Any, int] = {}  # number of the poll that found it, of what is still here
        self._ended: dict[Any, float] = {}  # when its end was seen
        self._strays: dict[Stay, float] = {}  # that are over, and when that was seen
        self._read: dict[Path, int] = {}  # segments that may go some day, and the poll that had read each to its end
        self._num_phases = 0
        self._phases_due = 0.0
        self._started = False  # the engine has, so no phase that comes is part of one that takes long

    def poll(self, now: float, final: bool = False) -> Iterator[list[Span]]:
        """Read on, and give out the traces that are whole now; with `final` also those that never will be."""
        self.polls += 1
        assembler = self.assembler
        for process, record in self.reader.poll(POLL_BYTES):
            assembler.feed(process, record)
        self._read |= dict.fromkeys(self.reader.finished, self.polls)
        self.reader.finished.clear()
        self.reader.look_alive()
        yield from self._life(now, final)
        for span_id, call in list(assembler.calls.items()):
            if self._due(call, True, lambda call: call.call is not None and call.serve is not None, now) or final:
                yield self._built(call_spans, call)
                del assembler.calls[span_id]
        for request in list(assembler.requests.values()):
            if self._due(request, request.close is not None, _is_whole, now) or final:
                yield self._built(request_spans, request)
                assembler.forget_request(request)
            elif request.close is None:
                request.cut(STEP_ENDS)
        self._strays = {stay: self._strays.get(stay, now) for stay in assembler.strays if stay.t_end or stay.process.died}
        for stay, ended in self._strays.items():
            if now - ended >= PATIENCE_S:
                yield stay_spans(stay)
                assembler.forget_stay(stay)
        for step in list(assembler.steps.values()):
            if self._due(step, step.update is not None, _all_sorted, now) or final:
                yield self._built(step_spans, step)
                assembler.forget_step(step)
        assembler.bags = [bag for bag in assembler.bags if bag.step is None and bag.sort.trace is not None][-EARLY:]
        if final:
            assembler.finish()
            yield from (stay_spans(stay) for stay in assembler.strays)
            yield from (bag_spans(bag) for bag in assembler.bags)

    def tidy(self) -> None:
        """Remove segments that are read, and of which all that began in them is over. What was given out must have arrived."""
        for path, read in list(self._read.items()):
            if read < self.oldest:
                path.unlink(missing_ok=True)
                del self._read[path]

    @property
    def behind(self) -> bool:
        """There is more to read than the last poll took."""
        return self.reader.behind

    @property
    def oldest(self) -> int:
        """The poll that found the oldest thing still here; records read before it are no longer needed."""
        return min(self._born.values(), default=self.polls + 1)

    def _due(self, journey: Journey, over: bool, whole: Callable[[Journey], bool], now: float) -> bool:
        """Whether it is over and has settled; longer where a part of it is not there yet."""
        self._born.setdefault(journey, self.polls)
        waited = now - self._ended.setdefault(journey, now) if over else 0.0
        return waited >= SETTLE_S and (waited >= PATIENCE_S or whole(journey))

    def _built(self, build: Callable[[Journey], list[Span]], journey: Journey) -> list[Span]:
        """Its spans; none for one that cannot be told, which must not stop the others."""
        del self._born[journey]
        self._ended.pop(journey, None)
        try:
            return build(journey)
        except Exception as error:
            self.failures.append(repr(error))
            return []

    def _life(self, now: float, final: bool) -> Iterator[list[Span]]:
        """Deaths, and phases once the one that holds them has come too: at start-up when that is over."""
        assembler, phases = self.assembler, self.assembler.phases
        if len(phases) > self._num_phases:
            self._num_phases, self._phases_due = len(phases), now + SETTLE_S
        self._started = self._started or bool(assembler.requests) or any(phase.name == START for _, phase in phases)
        if final or (self._started and now >= self._phases_due):
            yield list(life_spans(phases, assembler.deaths))
            assembler.phases, assembler.deaths, self._num_phases = [], [], 0


def _is_whole(request: RequestJourney) -> bool:
    """Every post led to a stay that is over, every abort was received, or nobody is left to do it."""
    ids = {internal_id for abort in request.aborts for internal_id in abort.internal_ids}
    received = {internal_id for _, receipt in request.abort_receipts for internal_id in receipt.internal_ids}
    over = [stay for stay in request.stays if stay.t_end is not None or stay.process.died]
    died = any(stay.process.died for stay in request.stays)
    return len(over) == len(request.posts) and (died or received.issuperset(ids))


def _all_sorted(step: StepJourney) -> bool:
    """As many bags were sent as the step made, and all of them were sorted."""
    made = step.update.num_bags if step.update is not None and step.update.num_bags >= 0 else len(step.sends)
    return len(step.sends) == made <= len(step.bags)
