"""What a request's passage looks like as rows of a table or a waterfall: its stops, each with its intervals.

Process: whichever prints. Knows: the journey model and its times. Does not know: views. All times are wall nanoseconds.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from typing import NamedTuple

from rich.text import Text

from vllm_lite.console.bars import Interval
from vllm_lite.console.theme import DIM, PROCESS_STYLES
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import Bag, RequestJourney, Run, times
from vllm_lite.tracing.stations import STATIONS


class Stop(NamedTuple):
    """A station, the wire, or a phase in the engine core (`code` is then "")."""

    code: str
    name: str
    process: str


def _stop(key: str) -> Stop:
    if key in STATIONS:
        return Stop(key, STATIONS[key].name, STATIONS[key].process)
    if key in (times.WIRE_IN, times.WIRE):
        return Stop("", "wire", "wire")
    return Stop("", key, "frontend" if key == times.ABORT else "engine-core")


# In the order in which a token meets them.
STOPS: dict[str, Stop] = {key: _stop(key) for key in times.STOPS}


def stop_label(key: str, width: int) -> Text:
    """Code and name of a stop in its process's colour, in `width` cells."""
    stop = STOPS[key]
    style = PROCESS_STYLES[stop.process]
    line = Text().append(f"{stop.code or '  '} ", f"bold {style}").append(stop.name, style if stop.code else DIM)
    return line.append(" " * (width - line.cell_len))


class Slot(NamedTuple):
    """What lay in a mailbox from the first put to the take: `letters` of them, so `letters - 1` were stapled."""

    t_put: int
    t_take: int | None  # None: never taken
    tokens: int
    letters: int


def slots(request: RequestJourney) -> list[Slot]:
    """What lay in the request's mailbox, in order (level 2 and up). The k-th put is what the k-th take found."""
    wall, takes, letters = request.process.wall, request.takes, request.letters
    found: list[Slot] = []
    for bag, place in zip(letters.sources, letters.places, strict=True):
        fate, tokens = bag.sort.fates[place], bag.sort.tokens[place]
        if fate == rec.PUT:
            take = takes[len(found)] if len(found) < len(takes) else None
            t_put = wall(take.t - take.wait) if take else wall(bag.sort.t_done)
            found.append(Slot(t_put, wall(take.t) if take else None, tokens, 1))
        elif fate == rec.STAPLED and found:
            found[-1] = found[-1]._replace(tokens=found[-1].tokens + tokens, letters=found[-1].letters + 1)
    return found


def request_intervals(request: RequestJourney) -> dict[str, list[Interval]]:
    """Every stop of a request, in the order of STOPS; a stop that it never came to has an empty list.

    A step is shared: S5 to S8 are the whole step's and bag's, whoever else was in them.
    """
    found: dict[str, list[Interval]] = {key: [] for key in STOPS}
    steps, bags = map(times.step_visits, request.steps), map(times.bag_visits, bags_of(request))
    for visits in (times.request_visits(request), *steps, *bags):
        for stop, t0, t1 in visits:
            found[stop].append((t0, t1))
    end = request_end(request)
    found["S9"] = [(slot.t_put, slot.t_take if slot.t_take is not None else max(end, slot.t_put)) for slot in slots(request)]
    return found


def bags_of(request: RequestJourney) -> list[Bag]:
    """The bags with a letter for this request; those of its steps where single letters were not recorded (level 1)."""
    if request.letters or request.late:
        return list(dict.fromkeys([*request.letters.sources, *(letter.bag for letter in request.late)]))
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
