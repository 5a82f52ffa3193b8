"""How long requests, steps and bags stayed at each station: all visits of a run as plain lists of nanoseconds.

Process: readers. Knows: the journey model. Does not know: screens. Every visit costs the same few look-ups, however long its
answer, so that the figures of ten thousand requests are there at once.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey.model import Bag, RequestJourney, Run, Spell, Stay

# In the order in which a token meets them: the stations, the wire between processes, and the phases in the engine core.
STOPS = (
    *("S1", "S2", "S3", "wire in", "S4", "queued", "prefill", "decode"),
    *("S5", "S6", "S7", "wire", "S8", "S9", "abort"),
)
Times = dict[str, list[int]]


def station_times(run: Run) -> Times:
    """Every visit's nanoseconds by stop, in no order: of requests, of steps (S5, S6) and of bags (S7, wire, S8)."""
    times: Times = {stop: [] for stop in STOPS}
    for request in run.requests:
        _entrance(request, times)
        for stay in request.stays:
            _in_core(stay, times)
        _mailbox(request, times)
        _aborts(request, times)
    for step in run.steps:
        times["S5"].append(step.schedule.t1 - step.schedule.t0)
        if step.execute is not None:
            times["S6"].append(step.execute.t1 - step.execute.t0)
    for bag in run.bags:
        _bag(bag, times)
    return times


def _entrance(request: RequestJourney, times: Times) -> None:
    start = request.accept.t
    if request.tokenise is not None:
        times["S1"].append(request.tokenise.t0 - start)
        times["S2"].append(request.tokenise.t1 - request.tokenise.t0)
        start = request.tokenise.t1
    for post in request.posts:
        times["S3"].append(post.t1 - start)
        start = post.t1


def _in_core(stay: Stay, times: Times) -> None:
    if stay.receive is not None:
        times["S4"].append(stay.receive.t1 - stay.receive.t0)
    if stay.receive is not None and stay.post is not None and stay.request is not None:
        sent = stay.request.process.wall(stay.post.t1)
        times["wire in"].append(max(stay.process.wall(stay.receive.t0) - sent, 0))
    for spell in stay.spells:
        _spell(stay, spell, times)


def _spell(stay: Stay, spell: Spell, times: Times) -> None:
    """Queued until its first step, prefilled until the step that computed the last of its prompt, decoded until its end."""
    end = spell.t_preempted if spell.t_preempted is not None else stay.t_end
    end = stay.process.t_last if end is None else end
    scheduled = spell.t_scheduled
    if spell.t_queued is not None:
        times["queued"].append((end if scheduled is None else scheduled) - spell.t_queued)
    if scheduled is None:
        return
    prefills = spell.prefills
    turn = scheduled if not prefills else min(end, prefills[-1].step.t_end)
    times["prefill"].append(turn - scheduled)
    if end > turn:
        times["decode"].append(end - turn)


def _mailbox(request: RequestJourney, times: Times) -> None:
    """How long each letter lay there; one that was never taken, until the request's end."""
    times["S9"] += [takes.waits[place] for takes, place in zip(request.takes.sources, request.takes.places, strict=True)]
    if request.close is not None and request.close.left:
        puts = [letter for letter in request.letters if letter.fate == rec.PUT]
        times["S9"] += [max(request.close.t - letter.bag.sort.t_done, 0) for letter in puts[len(request.takes) :]]


def _aborts(request: RequestJourney, times: Times) -> None:
    """From the abort's posting until the engine core heard it."""
    for abort in request.aborts:
        heard = [p.wall(r.t) for p, r in request.abort_receipts if not set(r.internal_ids).isdisjoint(abort.internal_ids)]
        posted = request.process.wall(abort.t)
        times["abort"].append(max(min(heard, default=posted) - posted, 0))


def _bag(bag: Bag, times: Times) -> None:
    times["S8"].append(bag.sort.t_done - bag.sort.t_received)
    if bag.step is not None and bag.send is not None:
        start = bag.step.update.t0 if bag.step.update else bag.send.t_queued
        times["S7"].append(bag.send.t1 - start)
        sent = bag.step.process.wall(bag.send.t1)
        times["wire"].append(max(bag.process.wall(bag.sort.t_received) - sent, 0))
