"""The mailroom's figures: what is known of a row, and the columns that show it.

Process: whichever prints. Knows: the journey model. Does not know: widths or colours of a screen.
Mirrors: nothing in vLLM.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

from vllm_lite.console import figures
from vllm_lite.console.passage import STOPS
from vllm_lite.console.rows import Row
from vllm_lite.console.theme import DIM, PROCESS_STYLES, STRONG
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.journey.times import WIRE, bag_visits, step_visits

TIMED = ("S5", "S6", "S7", WIRE, "S8")


class Column(NamedTuple):
    """A column: two lines of heading, which figure of a row it shows, and how."""

    top: str
    name: str
    style: str
    key: str
    text: Callable[[float], str]


_whole = "{:,.0f}".format
BAG = Column("", "bag", STRONG, "bag", "{:.0f}".format)
CORE = Column("", "core", PROCESS_STYLES["engine-core"], "engine_index", "{:.0f}".format)  # where there are several
BYTES = Column("", "bytes", "", "body_size", _whole)
COLUMNS = (
    BAG,
    Column("", "letters", "", "num_outputs", _whole),
    BYTES,
    *(Column(STOPS[key].code, STOPS[key].name, PROCESS_STYLES[STOPS[key].process], key, figures.ms) for key in TIMED),
)
WAIT = Column("S9", "wait", PROCESS_STYLES["frontend"], "wait", figures.ms)
# For wide screens, the most telling first.
PLANS = (
    Column("step's", "tokens", DIM, "num_tokens", _whole),
    Column("", "running", DIM, "num_running", _whole),
    Column("", "waiting", DIM, "num_waiting", _whole),
    Column("KV", "used", DIM, "kv_usage", "{:.1%}".format),
)


def row_figures(row: Row) -> dict[str, float]:
    """What is known of a row: nanoseconds at each of TIMED, counts of bag and step; means where it stands for several bags."""
    values: dict[str, list[float]] = defaultdict(list)
    steps = [bag.step for bag in row.bags if bag.step] if row.bags else row.steps
    for key, t0, t1 in chain(*map(step_visits, steps), *map(bag_visits, row.bags)):
        values[key].append(t1 - t0)
    for sort in (bag.sort for bag in row.bags):
        values["num_outputs"].append(sort.num_outputs)
        values["body_size"].append(sort.body_size)
        values["bag"] += [] if row.why else [sort.bag]
    for plan in (step.schedule for step in row.steps):
        for column in PLANS:
            values[column.key].append(getattr(plan, column.key))
    cores = {bag.sort.engine_index for bag in row.bags}
    values["engine_index"] += cores if len(cores) == 1 else ()
    return {key: sum(found) / len(found) for key, found in values.items() if found}


def longest_waits(run: Run, rows: Sequence[Row]) -> dict[int, int]:
    """By id of a row: the longest time that a letter of its bags lay in a mailbox. It takes a while for a large run."""
    row_of = {id(bag): id(row) for row in rows for bag in row.bags}
    found: dict[int, int] = defaultdict(int)
    for request in run.requests:
        bags, waits = request.bags, request.waits
        if bags and waits and not request.aborts and row_of.get(id(bags[0])) == row_of.get(id(bags[-1])):
            puts, waits = [bags[0]], [max(waits)]  # all its letters are in one row, so that none of them need be looked at
        else:  # the k-th put is what the k-th take found; who was aborted took one more, that no bag brought
            puts = [bag for bag, fate in zip(bags, request.fates, strict=True) if fate == rec.PUT]
        for bag, wait in zip(puts, waits, strict=False):
            if (row := row_of.get(id(bag))) is not None:
                found[row] = max(found[row], wait)
    return found
