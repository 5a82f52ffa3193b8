"""Which views follow each other on the screen, for one run or a part of it.

Process: front end, or a reader's own. Knows: the console's views. Does not know: engines.
Mirrors: nothing in vLLM.
"""

import dataclasses
import gc
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from vllm_lite.console.mailroom import ROWS, Mailroom
from vllm_lite.console.theme import DIM, Screen
from vllm_lite.console.timeline import LINES, Overview, Waterfall
from vllm_lite.console.totals import Totals
from vllm_lite.entrypoints.cli.callers import read_texts
from vllm_lite.tracing.journey import RequestJourney, Run, load_run

VIEWS = ("mailroom", "request", "totals")
WATERFALLS = 3
FOLDED = "  Bags are left out here; `trace show` with --all shows every one."
OTHERS = "  More waterfalls: `trace show` with --request ID, or --all for every one."


def open_run(run_dir: str) -> Run:
    """A run for a process that reads it and ends. Raises FileNotFoundError where there is none, with some that lie in folders
    of it."""
    gc.disable()  # nothing of it is garbage, and looking for some takes longer than reading it,
    try:
        run = load_run(run_dir)
    except FileNotFoundError as error:
        runs = sorted({str(spool.parent) for spool in Path(run_dir).glob("*/*.vlt")})[-3:]
        raise FileNotFoundError(f"{error}. Folders in it with a run: {', '.join(runs)}" if runs else str(error)) from None
    gc.freeze()  # as it would when the process ends
    return run


def show(console: Console, run: Run, views: Iterable[str] = VIEWS, *, everything: bool = False) -> None:
    """Print these views of the whole run, a blank line before each; `everything` leaves nothing out of long ones."""
    for name in views:
        print_apart(console, _VIEWS[name](run, everything))


def print_apart(console: Console, views: Iterable[RenderableType]) -> None:
    """Print each of them after a blank line."""
    for view in views:
        console.print(Text())
        console.print(view)


def look_again(console: Console, run_dir: Path) -> None:
    """The commands that show and check this run."""
    console.print(Text())
    console.print(Screen.of(console).title("look again"))
    for command in ("show", "check"):
        console.print(Text(f"{_own_name()} trace {command} {run_dir}"), soft_wrap=True)


def _own_name() -> str:
    """This command as the user can type it here: by its path where it is not on the PATH."""
    typed, found = Path(sys.argv[0]), shutil.which("vllm-lite")
    if typed.name != "vllm-lite" or (found is not None and Path(found).samefile(typed)):
        return "vllm-lite"
    return os.path.relpath(typed)


def part(run: Run, request_ids: Collection[str]) -> Run:
    """The run as if only these requests (by their callers' ids) had been in it."""
    wanted = [request for request in run.requests if request.accept.external_id in request_ids]
    steps = [step for step in run.steps if any(request in wanted for request in step.requests)]
    bags = [bag for bag in run.bags if bag.step in steps or any(letter.request in wanted for letter in bag.letters)]
    return dataclasses.replace(run, requests=wanted, steps=steps, bags=bags)


def _mailroom(run: Run, everything: bool) -> Iterator[RenderableType]:
    some, told = any(bag.sort.num_outputs for bag in run.bags), any(bag.sort.reqs or bag.late for bag in run.bags)
    if run.requests and some and not told:
        yield Text("Single letters are recorded from level 2: there is no mailroom at level 1.")
    else:
        view = Mailroom(run, None if everything else ROWS, texts=read_texts(run.path))
        yield Group(view, Text(FOLDED, DIM)) if view.folded else view


def _requests(run: Run, everything: bool) -> Iterator[RenderableType]:
    """All requests on one axis, then waterfalls: of each request, or of a few that differ."""
    if len(run.requests) != 1:
        yield Overview(run, None if everything else LINES)
    numbered = list(enumerate(run.requests))
    if not everything and len(numbered) > WATERFALLS:
        numbered = _different(numbered)
    for number, request in numbered:
        yield Waterfall(request, number)
    if len(numbered) < len(run.requests):
        yield Text(OTHERS, DIM)


_VIEWS: dict[str, Callable[[Run, bool], Iterable[RenderableType]]] = {
    "mailroom": _mailroom,
    "request": _requests,
    "totals": lambda run, everything: [Totals(run)],
}
_MATTERS: tuple[Callable[[RequestJourney], object], ...] = (  # stapled, aborted, preempted
    lambda request: request.close is not None and request.close.staples,
    lambda request: request.aborts,
    lambda request: any(len(stay.spells) > 1 for stay in request.stays),
)


def _different(numbered: list[tuple[int, RequestJourney]]) -> list[tuple[int, RequestJourney]]:
    """The first one, and the first ones to which something happened."""
    chosen = numbered[:1]
    for matters in _MATTERS:
        chosen += [item for item in numbered if matters(item[1]) and item not in chosen][:1]
    return chosen[:WATERFALLS]
