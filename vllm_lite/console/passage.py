"""When a request, a step or a bag was at each station: the one place that turns records into intervals.

Process: whichever prints. Knows: the journey model. Does not know: lines or colours.
All times are wall nanoseconds (one clock for all processes of a host). Where two stations meet at one moment that two threads
stamped, the later one starts no earlier than the one before it ends.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from vllm_lite.console.bars import Interval
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import Bag, RequestJourney, Run, StepJourney
from vllm_lite.tracing.stations import STATIONS

WIRE_IN, WIRE = "wire in", "wire"
QUEUED, PREFILL, DECODE, ABORT = "queued", "prefill", "decode", "abort"


class Stop(NamedTuple):
    """A row of a table or a waterfall: a station, the wire, or a phase in the engine core (`code` is then "")."""

    key: str
    code: str
    name: str
    process: str


def _station(code: str) -> Stop:
    station = STATIONS[code]
    return Stop(code, code, station.name, station.process)


# In the order in which a token meets them.
STOPS: dict[str, Stop] = {
    stop.key: stop
    for stop in (
        *(_station(code) for code in ("S1", "S2", "S3")),
        Stop(WIRE_IN, "", "wire", "wire"),
        _station("S4"),
        Stop(QUEUED, "", "queued", "engine-core"),
        Stop(PREFILL, "", "prefill", "engine-core"),
        Stop(DECODE, "", "decode", "engine-core"),
        *(_station(code) for code in ("S5", "S6", "S7")),
        Stop(WIRE, "", "wire", "wire"),
        *(_station(code) for code in ("S8", "S9")),
        Stop(ABORT, "", "abort", "frontend"),
    )
}


class Slot(NamedTuple):
    """What lay in a mailbox from the first put to the take: `letters` of them, so `letters - 1` were stapled."""

    t_put: int
    t_take: int | None  # None: never taken
    tokens: int
    letters: int


def step_intervals(step: StepJourney) -> dict[str, Interval]:
    """S5 and S6 of a step, as far as they were recorded."""
    wall = step.process.wall
    found = {"S5": (wall(step.schedule.t0), wall(step.schedule.t1))}
    if step.execute is not None:
        found["S6"] = (wall(step.execute.t0), wall(step.execute.t1))
    return found


def bag_intervals(bag: Bag) -> dict[str, Interval]:
    """S5 to S8 of a bag. S7 is from update_from_output to the encoded bag; from there to the clerk's hands it is the wire."""
    found = step_intervals(bag.step) if bag.step else {}
    sort, wall = bag.sort, bag.process.wall
    received = wall(sort.t_received)
    if bag.step is not None and bag.send is not None:
        core = bag.step.process.wall
        start = bag.step.update.t0 if bag.step.update else bag.send.t_queued
        found["S7"] = (core(start), core(bag.send.t1))
        found[WIRE] = (core(bag.send.t1), max(core(bag.send.t1), received))
    found["S8"] = (received, wall(sort.t_done))
    return found


def slots(request: RequestJourney) -> list[Slot]:
    """What lay in the request's mailbox, in order (level 2 and up). The k-th put is what the k-th take found."""
    wall = request.process.wall
    takes = list(request.takes)
    found: list[Slot] = []
    for letter in request.letters:
        if letter.fate == rec.PUT:
            take = takes[len(found)] if len(found) < len(takes) else None
            t_put = wall(take.t - take.wait) if take else wall(letter.bag.sort.t_done)
            found.append(Slot(t_put, wall(take.t) if take else None, letter.tokens, 1))
        elif letter.fate == rec.STAPLED and found:
            found[-1] = found[-1]._replace(tokens=found[-1].tokens + letter.tokens, letters=found[-1].letters + 1)
    return found


def request_intervals(request: RequestJourney) -> dict[str, list[Interval]]:
    """Every stop of a request, in the order of STOPS; a stop that it never came to has an empty list.

    A step is shared: S5 to S8 are the whole step's and bag's, whoever else was in them.
    """
    found: dict[str, list[Interval]] = {key: [] for key in STOPS}
    _entrance(request, found)
    for step in request.steps:
        for key, interval in step_intervals(step).items():
            found[key].append(interval)
    for bag in bags_of(request):
        for key, interval in bag_intervals(bag).items():
            if key not in ("S5", "S6"):
                found[key].append(interval)
    end = request_end(request)
    found["S9"] = [(slot.t_put, slot.t_take if slot.t_take is not None else max(end, slot.t_put)) for slot in slots(request)]
    _aborts(request, found)
    return found


def bags_of(request: RequestJourney) -> list[Bag]:
    """The bags with a letter for this request; those of its steps where single letters were not recorded (level 1)."""
    letters = [*request.letters, *request.late]
    if letters:
        return list({id(letter.bag): letter.bag for letter in letters}.values())
    return [bag for step in request.steps for bag in step.bags if bag.process is request.process]


def request_end(request: RequestJourney) -> int:
    """When it was closed; where that was not recorded, the last moment at which its front end was seen."""
    return request.process.wall(request.close.t if request.close else max(request.process.t_last, request.accept.t))


def time_span(run: Run) -> Interval:
    """From the first accept to the last close, (0, 0) for a run without requests."""
    starts = [request.process.wall(request.accept.t) for request in run.requests]
    return (min(starts), max(request_end(request) for request in run.requests)) if starts else (0, 0)


def first_token(request: RequestJourney) -> int | None:
    """Nanoseconds from accept to the first token in the mailbox."""
    t = request.close.t_first_token if request.close else None
    return None if t is None else t - request.accept.t


def total(intervals: Iterable[Interval]) -> int:
    """Their lengths together."""
    return sum(t1 - t0 for t0, t1 in intervals)


def _entrance(request: RequestJourney, found: dict[str, list[Interval]]) -> None:
    wall, accept = request.process.wall, request.accept
    if request.tokenise is not None:
        found["S1"].append((wall(accept.t), wall(request.tokenise.t0)))
        found["S2"].append((wall(request.tokenise.t0), wall(request.tokenise.t1)))
    start = request.tokenise.t1 if request.tokenise else accept.t
    for post in request.posts:
        found["S3"].append((wall(start), wall(post.t1)))
        start = post.t1
    for stay in request.stays:
        core = stay.process.wall
        if stay.receive is not None and stay.post is not None:
            sent = wall(stay.post.t1)
            found[WIRE_IN].append((sent, max(sent, core(stay.receive.t0))))
        if stay.receive is not None:
            found["S4"].append((core(stay.receive.t0), core(stay.receive.t1)))
        for spell in stay.spells:
            stop = spell.t_preempted if spell.t_preempted is not None else stay.t_end
            stop = stay.process.t_last if stop is None else stop
            if spell.t_queued is not None:
                found[QUEUED].append((core(spell.t_queued), core(spell.t_scheduled if spell.t_scheduled is not None else stop)))
            if spell.t_scheduled is not None:
                turn = _decode_start(spell.t_scheduled, [s.step for s in spell.shares if s.prefill], stop)
                found[PREFILL].append((core(spell.t_scheduled), core(turn)))
                if stop > turn:
                    found[DECODE].append((core(turn), core(stop)))


def _decode_start(scheduled: int, prefills: list[StepJourney], stop: int) -> int:
    if not prefills:
        return scheduled
    last = prefills[-1]
    ends = [last.update.t1] if last.update else [last.execute.t1] if last.execute else []
    return min(stop, ends[0]) if ends else stop


def _aborts(request: RequestJourney, found: dict[str, list[Interval]]) -> None:
    """From the abort's posting to the moment the engine core heard it (an instant where it never did)."""
    for abort in request.aborts:
        posted = request.process.wall(abort.t)
        heard = [p.wall(r.t) for p, r in request.abort_receipts if set(r.internal_ids) & set(abort.internal_ids)]
        found[ABORT].append((posted, max(posted, min(heard, default=posted))))
