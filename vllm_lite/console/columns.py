"""The mailroom's figures: what is known of a row, and the columns that show it.

Process: whichever prints. Knows: the journey model. Does not know: widths or colours of a screen.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from vllm_lite.console import figures
from vllm_lite.console.passage import STOPS
from vllm_lite.console.rows import Row
from vllm_lite.console.theme import DIM, PROCESS_STYLES, STRONG
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.journey.times import WIRE, bag_visits, step_visits

TIMED = ("S5", "S6", "S7", WIRE, "S8")


class Figures:
    """What the columns say of each row, worked out once; rows that stand for several bags have the means."""

    def __init__(self, run: Run, rows: Sequence[Row]) -> None:
        self._waits = longest_waits(run, rows)
        self._times = {id(row): _mean_times(row) for row in rows}

    def times(self, row: Row) -> dict[str, float]:
        """Nanoseconds at each of TIMED that is known."""
        return self._times[id(row)]

    def wait(self, row: Row) -> float | None:
        """The longest time that a letter put by these bags lay in its mailbox."""
        return self._waits.get(id(row))


class Column(NamedTuple):
    """A column: two lines of heading, and the figure of a row (None: not known)."""

    top: str
    name: str
    style: str
    figure: Callable[[Figures, Row], float | None]
    text: Callable[[float], str]


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _share(value: float) -> str:
    return f"{value:.1%}"


def _number(_: Figures, row: Row) -> float | None:
    return None if row.why else row.bags[0].sort.bag


def _letters(_: Figures, row: Row) -> float | None:
    return _mean([bag.sort.num_outputs for bag in row.bags])


def _bytes(_: Figures, row: Row) -> float | None:
    return _mean([bag.sort.body_size for bag in row.bags])


def _time(key: str) -> Column:
    stop = STOPS[key]
    return Column(stop.code, stop.name, PROCESS_STYLES[stop.process], lambda known, row: known.times(row).get(key), figures.ms)


def _plan(top: str, name: str, field: str, text: Callable[[float], str]) -> Column:
    return Column(top, name, DIM, lambda _, row: _mean([float(getattr(s.schedule, field)) for s in row.steps]), text)


COLUMNS = (
    Column("", "bag", STRONG, _number, str),
    Column("", "letters", "", _letters, _whole),
    Column("", "bytes", "", _bytes, _whole),
    *(_time(key) for key in TIMED),
)
WAIT = Column("S9", "wait", PROCESS_STYLES["frontend"], Figures.wait, figures.ms)
# For wide screens, the most telling first.
PLANS = (
    _plan("step's", "tokens", "num_tokens", _whole),
    _plan("", "running", "num_running", _whole),
    _plan("", "waiting", "num_waiting", _whole),
    _plan("KV", "used", "kv_usage", _share),
)


def longest_waits(run: Run, rows: Sequence[Row]) -> dict[int, int]:
    """By id of a row: the longest time that a letter of its bags lay in a mailbox."""
    row_of = {id(bag): id(row) for row in rows for bag in row.bags}
    found: dict[int | None, int] = {}
    for request in run.requests:
        bags, waits = request.letters.sources, request.waits
        if not (bags and waits):
            continue
        first, last = row_of.get(id(bags[0])), row_of.get(id(bags[-1]))
        if first == last and not request.aborts:  # all its letters are in one row; who was aborted took one that no bag brought
            pairs = iter([(first, max(waits))])
        else:
            puts = (row_of.get(id(bag)) for bag, fate in zip(bags, request.fates, strict=True) if fate == rec.PUT)
            pairs = zip(puts, waits, strict=False)
        for row, wait in pairs:
            found[row] = max(found.get(row, 0), wait)
    return {row: wait for row, wait in found.items() if row is not None}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _mean_times(row: Row) -> dict[str, float]:
    lengths: dict[str, list[int]] = {key: [] for key in TIMED}
    steps = [bag.step for bag in row.bags if bag.step] if row.bags else row.steps
    for visits in (*map(step_visits, steps), *map(bag_visits, row.bags)):
        for key, t0, t1 in visits:
            lengths[key].append(t1 - t0)
    return {key: sum(values) / len(values) for key, values in lengths.items() if values}
