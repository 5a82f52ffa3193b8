"""Which views follow each other on the screen, for one run or a part of it.

Process: front end. Knows: the console's views. Does not know: engines.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from rich.console import Console

from vllm_lite.console.mailroom import ROWS, Mailroom
from vllm_lite.console.timeline import LINES, Overview, Waterfall
from vllm_lite.console.totals import Totals
from vllm_lite.tracing.journey import RequestJourney, Run

WATERFALLS = 3


def mailroom(console: Console, run: Run, *, everything: bool = False, first: int = 0) -> None:
    """The bags; at level 1, where single letters are not recorded, a sentence that says so."""
    if run.requests and not any(bag.letters for bag in run.bags) and any(bag.sort.num_outputs for bag in run.bags):
        console.print("Single letters are recorded from level 2: at level 1 there is no mailroom to show.")
        return
    console.print(Mailroom(run, None if everything else ROWS, first))


def requests(console: Console, run: Run, *, everything: bool = False, first: int = 0) -> None:
    """All requests on one axis, then waterfalls: of each request, or of a few that differ."""
    if len(run.requests) != 1:
        console.print(Overview(run, None if everything else LINES, first))
    numbered = list(enumerate(run.requests, first))
    if not everything and len(numbered) > WATERFALLS:
        numbered = _different(numbered)
    for number, request in numbered:
        console.print(Waterfall(request, number))


def totals(console: Console, run: Run) -> None:
    """The figures."""
    console.print(Totals(run))


def part(run: Run, request_ids: Collection[str]) -> Run:
    """The run as if only these requests (by their callers' ids) had been in it."""
    wanted = [request for request in run.requests if request.accept.external_id in request_ids]
    steps = [step for step in run.steps if any(request in wanted for request in step.requests)]
    bags = [bag for bag in run.bags if bag.step in steps or any(letter.request in wanted for letter in bag.letters)]
    return dataclasses.replace(run, requests=wanted, steps=steps, bags=bags)


def _different(numbered: list[tuple[int, RequestJourney]]) -> list[tuple[int, RequestJourney]]:
    """The first one, and the first ones that were stapled, or aborted, or preempted."""
    chosen = [numbered[0]]
    for matters in (
        lambda request: request.close is not None and request.close.staples > 0,
        lambda request: bool(request.aborts),
        lambda request: any(len(stay.spells) > 1 for stay in request.stays),
    ):
        chosen += [item for item in numbered if matters(item[1]) and item not in chosen][:1]
    return chosen[:WATERFALLS]
