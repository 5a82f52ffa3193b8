"""What a request's passage looks like as rows of a table or a waterfall: its stops, each with its intervals.

Process: whichever prints. Knows: the journey model and its times. Does not know: views. All times are wall nanoseconds.
Mirrors: nothing in vLLM.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from rich.text import Text

from vllm_lite.console.figures import Interval, TimeScale
from vllm_lite.console.theme import ASCII, DIM, PROCESS_NAMES, PROCESS_STYLES, STRONG, Screen
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import Bag, RequestJourney, Run, times
from vllm_lite.tracing.stations import STATIONS

PLACE = 12  # cells for the process, on screens from PLACE_FROM on
PLACE_FROM = 100


class Stop(NamedTuple):
    """A station, the wire, or a phase in the engine core (`code` is then "")."""

    code: str
    name: str
    process: str

    def label(self, width: int) -> Text:
        """Code and name in the process's colour, in `width` cells."""
        style = PROCESS_STYLES[self.process]
        line = Text().append(f"{self.code or '  '} ", f"bold {style}").append(self.name, style if self.code else DIM)
        return line.append(" " * (width - line.cell_len))


# In the order in which a token meets them.
STOPS = {key: Stop("", key, "engine-core") for key in times.STOPS}
STOPS |= {code: Stop(code, station.name, station.process) for code, station in STATIONS.items()}
STOPS |= {key: Stop("", "wire", "wire") for key in (times.WIRE_IN, times.WIRE)}
STOPS[times.ABORT] = Stop("", "abort", "frontend")


class Chart:
    """Stops as rows on one time axis: `label` cells for the name of each, `figures` cells for numbers, then the axis.

    `stations` and `times` are what stands above the names and above the axis.
    """

    def __init__(self, screen: Screen, start: int, end: int, label: int, figures: int) -> None:
        self.glyphs, self.label = screen.glyphs, label
        self.place = PLACE if screen.width >= PLACE_FROM else 0
        self.border = f" {screen.glyphs.border} "
        left = self.place + label + figures + len(self.border)
        self.scale = TimeScale(start, end, max(10, screen.width - left))
        labels, self.ticks = self.scale.ticks()
        self.stations, self.times = " " * self.place + "station".ljust(label), self.border + labels

    def rows(self, rows: Iterable[tuple[Stop, Text, Sequence[Interval]]], blank: str | None = None) -> Iterator[Text]:
        """What it is, its figures, and when it was; `blank` is the colour of empty cells (None: the row's own)."""
        process = ""
        for stop, figures, intervals in rows:
            name = "" if stop.process == process else PROCESS_NAMES[stop.process]
            process, style = stop.process, PROCESS_STYLES[stop.process]
            line = Text().append(name.ljust(self.place)[: self.place], DIM).append_text(stop.label(self.label))
            line.append_text(figures).append(self.border, DIM)
            for column, mark in enumerate(self.scale.strip(intervals, self.glyphs.levels)):
                if mark == " " and column in self.ticks:
                    line.append(self.glyphs.grid, DIM)
                else:
                    line.append(mark, blank if blank and mark == " " else style)
            yield line
        if self.glyphs is ASCII:
            yield Text.assemble("  ", (ASCII.levels.strip(), STRONG), (" from a little of a cell's time to all of it", DIM))


class Slot(NamedTuple):
    """What lay in a mailbox from the first put to the take: `letters` of them, so `letters - 1` were stapled."""

    t_put: int
    t_take: int | None  # None: never taken
    letters: int


def slots(request: RequestJourney) -> list[Slot]:
    """What lay in the request's mailbox, in order (level 2 and up). The k-th put is what the k-th take found."""
    wall, takes = request.process.wall, list(zip(request.t_takes, request.waits, strict=True))
    found: list[Slot] = []
    for bag, fate in zip(request.bags, request.fates, strict=True):
        if fate == rec.PUT:
            if len(found) < len(takes):
                t_take, wait = takes[len(found)]
                found.append(Slot(wall(t_take - wait), wall(t_take), 1))
            else:
                found.append(Slot(wall(bag.sort.t_done), None, 1))
        elif fate == rec.STAPLED and found:
            found[-1] = found[-1]._replace(letters=found[-1].letters + 1)
    return found


def request_intervals(request: RequestJourney) -> dict[str, list[Interval]]:
    """Every stop of a request, in the order of STOPS; a stop that it never came to has an empty list.

    A step is shared: S5 to S8 are the whole step's and bag's, whoever else was in them.
    """
    found: dict[str, list[Interval]] = {key: [] for key in STOPS}
    shared = (*map(times.step_visits, request.steps), *map(times.bag_visits, bags_of(request)))
    for stop, t0, t1 in chain(times.request_visits(request), *shared):
        found[stop].append((t0, t1))
    end = request_end(request)
    found["S9"] = [(slot.t_put, slot.t_take if slot.t_take is not None else max(end, slot.t_put)) for slot in slots(request)]
    return found


def bags_of(request: RequestJourney) -> list[Bag]:
    """The bags with a letter for this request; those of its steps where single letters were not recorded (level 1)."""
    if request.bags or request.late:
        return list(dict.fromkeys([*request.bags, *(letter.bag for letter in request.late)]))
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
