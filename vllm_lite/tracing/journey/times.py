"""When a request, a step or a bag was at each station, and for how long: the one place that turns records into times.

Process: readers. Knows: the journey model. Does not know: screens. All times are wall nanoseconds, one clock for all processes
of a host. Where two threads stamped the moment at which two stations meet, the later one starts no earlier than the one before
it ends. How long letters lay in mailboxes is read from columns, without an object for each token.
Mirrors: nothing in vLLM.
"""

from collections.abc import Iterator
from itertools import chain

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey.model import Bag, RequestJourney, Run, Stay, StepJourney

WIRE_IN, WIRE = "wire in", "wire"
QUEUED, PREFILL, DECODE, ABORT = "queued", "prefill", "decode", "abort"
# In the order in which a token meets them: the stations, the wire between processes, and the phases in the engine core.
STOPS = ("S1", "S2", "S3", WIRE_IN, "S4", QUEUED, PREFILL, DECODE, "S5", "S6", "S7", WIRE, "S8", "S9", ABORT)
Visit = tuple[str, int, int]  # stop, from, to
Times = dict[str, list[int]]


def station_times(run: Run) -> Times:
    """Every visit's nanoseconds by stop, in no order: of requests, of steps (S5, S6) and of bags (S7, wire, S8)."""
    times: Times = {stop: [] for stop in STOPS}
    visits = chain(map(request_visits, run.requests), map(step_visits, run.steps), map(bag_visits, run.bags))
    for stop, t0, t1 in chain.from_iterable(visits):
        times[stop].append(t1 - t0)
    for request in run.requests:
        times["S9"] += request.waits + _never_taken(request)
    return times


def request_visits(request: RequestJourney) -> Iterator[Visit]:
    """Its way in, its stays in the engine core, its aborts; neither its mailbox nor the steps and bags that it shared."""
    wall, start = request.process.wall, request.accept.t
    for number, part in enumerate(request.tokenised):
        if not number:
            yield "S1", wall(start), wall(part.t0)
            start = part.t1
        yield "S2", wall(part.t0), wall(part.t1)
    for number, post in enumerate(request.posts):
        if number and not request.has_samples:  # a session's later part, which came when it came
            start = post.t0
        yield "S3", wall(start), wall(post.t1)
        start = post.t1
    for stay in request.stays:
        yield from stay_visits(stay)
    for abort in request.aborts:  # until the engine core heard it; an instant where it never did
        heard = [p.wall(r.t) for p, r in request.abort_receipts if not set(r.internal_ids).isdisjoint(abort.internal_ids)]
        yield ABORT, wall(abort.t), max(wall(abort.t), min(heard, default=0))


def step_visits(step: StepJourney) -> Iterator[Visit]:
    """S5 and S6, as far as they were recorded."""
    wall = step.process.wall
    yield "S5", wall(step.schedule.t0), wall(step.schedule.t1)
    if step.execute is not None:
        yield "S6", wall(step.execute.t0), wall(step.execute.t1)


def bag_visits(bag: Bag) -> Iterator[Visit]:
    """S7, from update_from_output to the encoded bag; from there to the clerk's hands it is the wire; then S8."""
    received = bag.process.wall(bag.sort.t_received)
    if bag.step is not None and bag.send is not None:
        sent = bag.step.process.wall(bag.send.t1)
        start = bag.step.update.t0 if bag.step.update else bag.send.t_queued
        yield "S7", bag.step.process.wall(start), sent
        yield WIRE, sent, max(sent, received)
    yield "S8", received, bag.process.wall(bag.sort.t_done)


def stay_visits(stay: Stay) -> Iterator[Visit]:
    """The wire to the engine core, S4, and each of its spells there: queued until its first step, prefilled until the step that
    computed the last of its prompt, decoded until its end."""
    wall = stay.process.wall
    if stay.receive is not None:
        if stay.post is not None and stay.request is not None:
            sent = stay.request.process.wall(stay.post.t1)
            yield WIRE_IN, sent, max(sent, wall(stay.receive.t0))
        yield "S4", wall(stay.receive.t0), wall(stay.receive.t1)
    over = stay.process.t_last if stay.t_end is None else stay.t_end
    for spell in stay.spells:
        scheduled, prefills = spell.t_scheduled, spell.prefills
        end = over if spell.t_preempted is None else spell.t_preempted
        if spell.t_queued is not None:
            yield QUEUED, wall(spell.t_queued), wall(end if scheduled is None else scheduled)
        if scheduled is not None:
            turn = min(end, prefills[-1].step.t_end) if prefills else scheduled
            yield PREFILL, wall(scheduled), wall(turn)
            if end > turn:
                yield DECODE, wall(turn), wall(end)


def _never_taken(request: RequestJourney) -> list[int]:
    """How long the letters lay there, until the request's end, that its caller did not take."""
    if request.close is None or not request.close.left:
        return []
    puts = [bag for bag, fate in zip(request.bags, request.fates, strict=True) if fate == rec.PUT]
    return [max(request.close.t - bag.sort.t_done, 0) for bag in puts[len(request.t_takes) :]]
