"""One bag in the front end: received, opened, sorted slice by slice, with the aborts that stop strings caused.

Process: readers. Knows: Bag. Does not know: what the engine core did before.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.context import parse_traceparent
from vllm_lite.tracing.journey import LATE, Bag, Letter
from vllm_lite.tracing.spans.model import (
    INCOMPLETE,
    REQUEST_ID,
    Attributes,
    Event,
    Kind,
    Link,
    Span,
    derived_id,
    messaging,
)


def bag_spans(bag: Bag) -> list[Span]:
    """The bag and all below it; nothing for a bag whose step was not traced."""
    sent_by = parse_traceparent(bag.sort.trace)
    if sent_by is None:
        return []
    whole = _process(bag, sent_by.trace_id, derived_id(sent_by.span_id, "sort"), sent_by.span_id)
    return [whole, *_slices(bag, whole), *_aborts(bag, whole)]


def _process(bag: Bag, trace_id: str, span_id: str, sender: str) -> Span:
    sort, wall, send = bag.sort, bag.process.wall, bag.send
    attributes: Attributes = {
        **messaging("process", "process", "engine_core.outputs"),
        "messaging.batch.message_count": sort.num_outputs,
        "messaging.message.body.size": sort.body_size,
        "vllm_lite.bag.index": sort.bag,
        "vllm_lite.engine_index": sort.engine_index,
        "vllm_lite.decode_us": (sort.t_decoded - sort.t_received) / 1000,
        "vllm_lite.num_slices": len(sort.slices),
        "vllm_lite.num_tokens": sort.num_tokens,
        "vllm_lite.num_put": sort.num_put,
        "vllm_lite.num_stapled": sort.num_stapled,
        "vllm_lite.num_kept_back": sort.num_kept_back,
        "vllm_lite.num_late": len(sort.late),
    }
    start, end = wall(sort.t_received), wall(sort.t_done)
    name, kind = "process engine_core.outputs", Kind.CONSUMER
    span = Span(bag.process, trace_id, span_id, sender, name, kind, start, end, attributes, remote_parent=True)
    span.events = [
        Event("letter.late", end, {"vllm_lite.internal_id": internal_id, "tokens": tokens}) for internal_id, tokens in sort.late
    ]
    if send is not None and bag.step is not None:
        span.attributes["vllm_lite.wire_us"] = max(start - bag.step.process.wall(send.t2), 0) / 1000
    else:  # the engine core was killed before it could write down what it had sent
        span.parent_span_id = bag.step.schedule.span_id if bag.step else None
        span.attributes[INCOMPLETE] = True
    return span


def _slices(bag: Bag, whole: Span) -> list[Span]:
    spans: list[Span] = []
    slices = bag.sort.slices
    for index, (t0, t1, size) in enumerate(slices):
        if index:
            spans.append(_part(bag, whole, "yield_to_loop", index, (slices[index - 1][1], t0)))
        span = _part(bag, whole, "output_processor.slice", index, (t0, t1))
        span.attributes = {"vllm_lite.slice.index": index, "vllm_lite.slice.size": size}
        span.events = [_event(letter, span.end) for letter in bag.letters if letter.slice == index and letter.fate != LATE]
        spans.append(span)
    return spans


def _part(bag: Bag, whole: Span, name: str, index: int, t: tuple[int, int]) -> Span:
    wall, span_id = bag.process.wall, derived_id(whole.span_id, name, index)
    return Span(bag.process, whole.trace_id, span_id, whole.span_id, name, Kind.INTERNAL, wall(t[0]), wall(t[1]))


_EVENT_NAMES = {rec.PUT: "collector.put", rec.STAPLED: "collector.merge", rec.KEPT_BACK: "collector.keep_back"}


def _event(letter: Letter, t: int) -> Event:
    attributes: Attributes = {"tokens": letter.tokens}
    if letter.request is not None:
        attributes[REQUEST_ID] = letter.request.accept.external_id
    return Event(_EVENT_NAMES[letter.fate], t, attributes)


def _aborts(bag: Bag, whole: Span) -> list[Span]:
    """What this bag's stop strings made the front end send, linked to the abort span of each request."""
    if not bag.aborts:
        return []
    times = [abort.t for _, abort in bag.aborts]
    span = _part(bag, whole, "send engine_core.abort", 0, (min(times), max(times)))
    span.kind = Kind.PRODUCER
    span.attributes = {
        **messaging("send", "send", "engine_core.inputs"),
        "messaging.batch.message_count": len(bag.aborts),
        "vllm_lite.abort.reason": "stop_string",
    }
    span.links = [
        Link(request.accept.trace_id, abort.span_id, {REQUEST_ID: request.accept.external_id}) for request, abort in bag.aborts
    ]
    return [span]
