"""One request's stay in an engine core: queued, prefilled, decoded, and again after each preemption.

Process: readers. Knows: Stay and its steps. Does not know: the front end's half of the request.
Mirrors: nothing in vLLM.
"""

from collections.abc import Iterable, Iterator

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import Share, Spell, Stay
from vllm_lite.tracing.spans.model import STEP_INDEX, Attributes, Event, Kind, Link, Span, derived_id, known, messaging

IN_FLIGHT = 4  # steps that may be under way at once; of an engine that died, the last one need not be the one that ended last
STEP_ENDS = 500  # request.step spans made at a stay's start, and again at its end; the rest is counted


def stay_spans(stay: Stay) -> list[Span]:
    """The stay and all below it; nothing where the record that opens it is lost."""
    if stay.receive is None:
        return []
    span = _stay(stay, stay.receive)
    phases = [phase for number, spell in enumerate(stay.spells) for phase in _phases(stay, span, number, spell)]
    span.hold(phases)
    deep = stay.request is not None and stay.request.accept.level > 2
    return [span, *phases, *(_request_steps(stay, span) if deep else ())]


def queue_time_ns(stay: Stay) -> int:
    """How long it lay in the waiting queue before it was scheduled, all times together."""
    waits = [(spell.t_queued, spell.t_scheduled) for spell in stay.spells]
    return sum(max(t1 - t0, 0) for t0, t1 in waits if t0 is not None and t1 is not None)


def _end(stay: Stay) -> int:
    """When it was over; where nobody wrote that down, the last time its process was seen."""
    return stay.t_end if stay.t_end is not None else stay.process.t_last


def _stay(stay: Stay, receive: rec.Receive) -> Span:
    t = receive.t0, max(_end(stay), receive.t1)
    span = Span.recorded(stay.process, receive, "process engine_core.inputs", Kind.CONSUMER, t)
    span.attributes = known(
        {
            **messaging("process", "process", "engine_core.inputs"),
            "messaging.message.id": receive.internal_id,
            "messaging.message.body.size": receive.body_size,
            "vllm_lite.preemptions": len(stay.spells) - 1,
            "gen_ai.response.finish_reasons": [stay.finish_reason] if stay.finish_reason else None,
            "vllm_lite.leave.reason": stay.leave.reason if stay.leave else None,
            "vllm_lite.leave.status": stay.leave.status if stay.leave else None,
            "vllm_lite.blocks_refused": stay.num_refused or None,
            "vllm_lite.stale_tokens": stay.num_stale or None,
        }
    )
    span.events = [
        Event("request.preempted", stay.process.wall(spell.t_preempted), {"vllm_lite.preemption": number})
        for number, spell in enumerate(stay.spells, 1)
        if spell.t_preempted is not None
    ]
    if stay.post is None:  # the sender's record is lost, and with it the span that this one would hang on
        span.parent_span_id = None
        span.leave_open()
    if stay.finish_reason == "error":
        span.fail("engine_generate_error", "the request failed in the engine core")
    elif stay.t_end is None:
        span.leave_open("the engine core died before the request ended")
    return span


def _phases(stay: Stay, span: Span, number: int, spell: Spell) -> list[Span]:
    """request.queued, .prefill and .decode of one spell, as far as it came."""
    phases: list[Span] = []

    def phase(name: str, start: int, end: int, attributes: Attributes, shares: Iterable[Share] = ()) -> None:
        phases.append(span.child(f"request.{name}", Kind.INTERNAL, (start, end), attributes, number=number))
        phases[-1].links = [_link(share) for share in shares]

    steps, prefills, scheduled = spell.steps, spell.prefills, spell.t_scheduled
    over = spell.t_preempted if spell.t_preempted is not None else _end(stay)
    over = max([over, *[step.t_end for step in steps[-IN_FLIGHT:]]])
    if spell.t_queued is not None:
        until = over if scheduled is None else scheduled
        phase("queued", min(spell.t_queued, until), until, {})
    if scheduled is None:
        return phases
    turn, num_decodes = scheduled, steps.total - len(prefills)
    if prefills:
        turn = max([share.step.t_end for share in prefills[-IN_FLIGHT:]]) if num_decodes else over
        attributes: Attributes = {
            "vllm_lite.chunks": len(prefills),
            "vllm_lite.num_computed_tokens": sum([share.tokens for share in prefills]),
            "vllm_lite.num_cached_tokens": spell.num_cached_tokens,
        }
        phase("prefill", scheduled, turn, attributes, prefills)
    if num_decodes:
        first, last = steps[len(prefills)], steps[-1]
        shares = [step.share(spell.req) for step in dict.fromkeys((first, last))]
        phase("decode", min(turn, first.schedule.t0), over, {"vllm_lite.num_steps": num_decodes}, shares)
    return phases


def _link(share: Share) -> Link:
    """The same for all that have so many tokens in that step."""
    step, tokens = share.step, share.tokens
    if (link := step.links.get(tokens)) is None:
        attributes: Attributes = {STEP_INDEX: step.index, "vllm_lite.num_tokens": tokens}
        link = step.links[tokens] = Link(step.schedule.trace_id, step.schedule.span_id, attributes)
    return link


def _request_steps(stay: Stay, span: Span) -> Iterator[Span]:
    """Level 3: the request's part in each step, linked to the real step's span; of a long answer the first and last ones."""
    parts: list[tuple[str, Share]] = []  # with the id of the phase it belongs to
    for number, spell in enumerate(stay.spells):
        decode, prefill = (derived_id(span.span_id, f"request.{name}", number) for name in ("decode", "prefill"))
        parts += [(prefill if share.prefill else decode, share) for share in spell.shares]
    if len(parts) > 2 * STEP_ENDS:
        parts = parts[:STEP_ENDS] + parts[-STEP_ENDS:]
    span.attributes["vllm_lite.steps_elided"] = sum(spell.steps.total for spell in stay.spells) - len(parts)
    for parent, share in parts:
        schedule = share.step.schedule
        attributes: Attributes = {
            STEP_INDEX: schedule.step,
            "vllm_lite.num_tokens": share.tokens,
            "vllm_lite.batch_size": schedule.num_requests,
        }
        ids = span.trace_id, derived_id(f"{span.span_id}/step/{schedule.step}"), parent
        times = span.process.wall(schedule.t0), span.process.wall(share.step.t_end)
        yield Span(span.process, *ids, "request.step", Kind.INTERNAL, *times, attributes, links=[_link(share)])
