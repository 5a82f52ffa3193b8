"""One request's stay in an engine core: queued, prefilled, decoded, and again after each preemption.

Process: readers. Knows: Stay and its steps. Does not know: the front end's half of the request.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from typing import NamedTuple

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import Share, Spell, Stay, StepJourney
from vllm_lite.tracing.spans.model import (
    ENGINE_DEAD,
    INCOMPLETE,
    STEP_INDEX,
    Attributes,
    Event,
    Kind,
    Link,
    Span,
    derived_id,
    known,
    messaging,
)

STEP_ENDS = 500  # request.step spans made at a stay's start, and again at its end; the rest is counted


class _Phase(NamedTuple):
    span: Span
    shares: list[Share]


def stay_spans(stay: Stay) -> list[Span]:
    """The stay and all below it; nothing where the record that opens it is lost."""
    if stay.receive is None:
        return []
    span = _stay(stay, stay.receive)
    phases = [phase for number, spell in enumerate(stay.spells) for phase in _phases(stay, spell, number)]
    span.end = max([span.end, *(phase.span.end for phase in phases)])
    return [span, *(phase.span for phase in phases), *_steps(stay, span, phases)]


def queue_time_ns(stay: Stay) -> int:
    """How long it lay in the waiting queue before it was scheduled, all times together."""
    waited = 0
    for spell in stay.spells:
        if spell.t_queued is not None and spell.t_scheduled is not None:
            waited += max(spell.t_scheduled - spell.t_queued, 0)
    return waited


def step_end(step: StepJourney) -> int:
    """When the step's result was worked in, or the last that is known of it."""
    last = step.update or step.execute or step.schedule
    return last.t1


def _end(stay: Stay) -> int:
    """When it was over; where nobody wrote that down, the last time its process was seen."""
    return stay.t_end if stay.t_end is not None else stay.process.t_last


def _stay(stay: Stay, receive: rec.Receive) -> Span:
    wall = stay.process.wall
    attributes: Attributes = {
        **messaging("process", "process", "engine_core.inputs"),
        "messaging.message.id": receive.internal_id,
        "messaging.message.body.size": receive.body_size,
        "vllm_lite.preemptions": len(stay.spells) - 1,
        **known(
            {
                "gen_ai.response.finish_reasons": [stay.finish_reason] if stay.finish_reason else None,
                "vllm_lite.leave.reason": stay.leave.reason if stay.leave else None,
                "vllm_lite.leave.status": stay.leave.status if stay.leave else None,
            }
        ),
    }
    span = Span(
        stay.process,
        receive.trace_id,
        receive.span_id,
        receive.parent_span_id,
        "process engine_core.inputs",
        Kind.CONSUMER,
        wall(receive.t0),
        wall(max(_end(stay), receive.t1)),
        attributes,
        remote_parent=True,
    )
    span.events = [
        Event("request.preempted", wall(spell.t_preempted), {"vllm_lite.preemption": number})
        for number, spell in enumerate(stay.spells, 1)
        if spell.t_preempted is not None
    ]
    if stay.post is None:  # the sender's record is lost, and with it the span that this one would hang on
        span.parent_span_id = None
        span.attributes[INCOMPLETE] = True
    if stay.finish_reason == "error":
        span.fail("engine_generate_error", "the request failed in the engine core")
    elif stay.t_end is None:
        span.attributes[INCOMPLETE] = True
        if stay.process.died:
            span.fail(ENGINE_DEAD, "the engine core died before the request ended")
    return span


def _phases(stay: Stay, spell: Spell, number: int) -> list[_Phase]:
    """request.queued, .prefill and .decode of one spell, as far as it came."""
    shares = list(spell.shares)
    ends = [step_end(share.step) for share in shares]
    over = max([spell.t_preempted if spell.t_preempted is not None else _end(stay), *ends])
    phases = []
    if spell.t_queued is not None:
        until = over if spell.t_scheduled is None else spell.t_scheduled
        phases.append(_Phase(_phase(stay, "queued", number, (min(spell.t_queued, until), until)), []))
    if spell.t_scheduled is None:
        return phases
    prefills = [share for share in shares if share.prefill]
    decodes = [share for share in shares if not share.prefill]
    prefilled = spell.t_scheduled
    if prefills:
        prefilled = max(step_end(share.step) for share in prefills) if decodes else over
        phases.append(_Phase(_prefill(stay, spell, number, prefilled), prefills))
    if decodes:
        start = min(prefilled, decodes[0].step.schedule.t0)
        phases.append(_Phase(_decode(stay, spell, number, (start, over)), decodes))
    return phases


def _phase(stay: Stay, name: str, number: int, t: tuple[int, int]) -> Span:
    assert stay.receive is not None
    parent, wall = stay.receive.span_id, stay.process.wall
    span_id = derived_id(parent, name, number)
    kind = Kind.INTERNAL
    return Span(stay.process, stay.receive.trace_id, span_id, parent, f"request.{name}", kind, wall(t[0]), wall(t[1]))


def _prefill(stay: Stay, spell: Spell, number: int, end: int) -> Span:
    assert spell.t_scheduled is not None
    span = _phase(stay, "prefill", number, (spell.t_scheduled, end))
    span.attributes = {
        "vllm_lite.chunks": spell.num_prefills,
        "vllm_lite.num_computed_tokens": spell.num_prefill_tokens,
        "vllm_lite.num_cached_tokens": spell.num_cached_tokens,
    }
    span.links = [_link(share) for share in spell.shares if share.prefill]
    return span


def _decode(stay: Stay, spell: Spell, number: int, t: tuple[int, int]) -> Span:
    span = _phase(stay, "decode", number, t)
    span.attributes = {"vllm_lite.num_steps": spell.shares.count - spell.num_prefills}
    decodes = [share for share in spell.shares if not share.prefill]
    span.links = [_link(share) for share in decodes[:1] + decodes[1:][-1:]]
    return span


def _link(share: Share) -> Link:
    schedule = share.step.schedule
    return Link(schedule.trace_id, schedule.span_id, {STEP_INDEX: schedule.step, "vllm_lite.num_tokens": share.tokens})


def _steps(stay: Stay, span: Span, phases: list[_Phase]) -> list[Span]:
    """Level 3: one child for each step, linked to the real step's span; the first and the last of a long answer."""
    if stay.request is None or stay.request.accept.level < 3:
        return []
    parts = [(phase.span, share) for phase in phases for share in phase.shares]
    made = parts if len(parts) <= 2 * STEP_ENDS else parts[:STEP_ENDS] + parts[-STEP_ENDS:]
    span.attributes["vllm_lite.steps_elided"] = sum(spell.shares.count for spell in stay.spells) - len(made)
    return [_request_step(stay, span, parent, share) for parent, share in made]


def _request_step(stay: Stay, span: Span, parent: Span, share: Share) -> Span:
    wall, schedule = stay.process.wall, share.step.schedule
    attributes: Attributes = {
        STEP_INDEX: schedule.step,
        "vllm_lite.num_tokens": share.tokens,
        "vllm_lite.batch_size": schedule.num_requests,
    }
    return Span(
        stay.process,
        span.trace_id,
        derived_id(span.span_id, "step", schedule.step),
        parent.span_id,
        "request.step",
        Kind.INTERNAL,
        wall(schedule.t0),
        wall(step_end(share.step)),
        attributes,
        links=[_link(share)],
    )
