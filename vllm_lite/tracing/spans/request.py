"""One request's trace: the caller's view in the front end.

Process: readers. Knows: RequestJourney, the conventions for names and attributes. Does not know: steps from the inside.
Mirrors: vllm/v1/engine/output_processor.py (do_tracing), of which it makes one span for each thing that happened
"""

from __future__ import annotations

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.context import parse_traceparent
from vllm_lite.tracing.journey import Letter, RequestJourney
from vllm_lite.tracing.process import Process
from vllm_lite.tracing.spans.model import (
    INCOMPLETE,
    REQUEST_ID,
    STEP_INDEX,
    Attributes,
    Event,
    Kind,
    Span,
    derived_id,
    known,
    messaging,
)
from vllm_lite.tracing.spans.stay import queue_time_ns, stay_spans

_UNMEASURED = ("rejected", "invalid")  # outcomes of requests that used nothing


def request_spans(request: RequestJourney) -> list[Span]:
    """All spans of the request's trace, the root first."""
    root = _root(request)
    children = [*_tokenise(request), *_posts(request, root), *_mailbox(request), *_aborts(request)]
    root.end = max([root.end, *(span.end for span in children if span.parent_span_id == root.span_id)])
    stays = [span for stay in request.stays for span in stay_spans(stay)]
    return [root, *children, *stays, *_abort_receipts(request)]


def _span(request: RequestJourney, name: str, kind: Kind, t: tuple[int, int], span_id: str, *, attributes: Attributes) -> Span:
    """A front-end span right below the root."""
    wall, accept = request.process.wall, request.accept
    return Span(request.process, accept.trace_id, span_id, accept.span_id, name, kind, wall(t[0]), wall(t[1]), attributes)


def _root(request: RequestJourney) -> Span:
    accept, close, process = request.accept, request.close, request.process
    end = close.t if close else max(process.t_last, accept.t)
    span = _span(
        request, f"{accept.operation} {accept.model}", Kind.SERVER, (accept.t, end), accept.span_id, attributes=_asked(request)
    )
    span.parent_span_id, span.remote_parent = accept.parent_span_id, accept.parent_span_id is not None
    span.tracestate = accept.tracestate
    span.events = [_token_event(letter) for letter in request.letters]
    span.dropped_events = request.letters.skipped
    if close is not None:
        span.attributes |= _answered(request, close)
        if close.outcome != "finished":
            span.fail(close.error_type or close.outcome, close.error_message or close.outcome)
    else:
        span.attributes[INCOMPLETE] = True
        if process.died:
            span.fail("frontend_dead", "the front end died before the request ended")
    return span


def _asked(request: RequestJourney) -> Attributes:
    accept = request.accept
    internal_ids = [post.internal_id for post in request.posts]
    return known(
        {
            "gen_ai.operation.name": accept.operation,
            "gen_ai.provider.name": "vllm-lite",
            "gen_ai.request.model": accept.model,
            **accept.attributes,
            REQUEST_ID: accept.external_id,
            "vllm_lite.internal_id": internal_ids[0] if len(internal_ids) == 1 else internal_ids or None,
        }
    )


def _answered(request: RequestJourney, close: rec.Close) -> Attributes:
    measured = close.outcome not in _UNMEASURED
    first = close.t_first_token
    waited = [queue_time_ns(stay) for stay in request.stays]
    return known(
        {
            "gen_ai.response.id": request.accept.external_id,
            "gen_ai.response.model": request.accept.model,
            "gen_ai.response.finish_reasons": close.finish_reasons or None,
            "gen_ai.response.time_to_first_chunk": None if first is None else (first - request.accept.t) / 1e9,
            "gen_ai.usage.input_tokens": close.num_prompt_tokens if measured else None,
            "gen_ai.usage.output_tokens": close.num_output_tokens if measured else None,
            "gen_ai.usage.cache_read.input_tokens": close.num_cached_tokens if measured else None,
            "vllm_lite.outcome": close.outcome,
            "vllm_lite.stop_reason": close.stop_reason,
            "vllm_lite.queue_time": sum(waited) / 1e9 if waited else None,
            "vllm_lite.puts": close.puts,
            "vllm_lite.staples": close.staples,
            "vllm_lite.takes": close.takes,
            "vllm_lite.left": close.left,
            "vllm_lite.kept_back": close.kept_back,
            "vllm_lite.late": len(request.late),
        }
    )


def _token_event(letter: Letter) -> Event:
    step = letter.bag.step
    attributes = {
        "index": letter.position,
        "n": letter.tokens,
        "merged": letter.fate == rec.STAPLED,
        STEP_INDEX: None if step is None else step.index,
    }
    return Event("gen_ai.token.generated", _put_time(letter), known(attributes))


def _put_time(letter: Letter) -> int:
    """When the slice that held the letter was done (wall ns): all of a slice's letters are there before any is taken."""
    sort = letter.bag.sort
    return letter.bag.process.wall(sort.slices[letter.slice][1] if sort.slices else sort.t_done)


def _tokenise(request: RequestJourney) -> list[Span]:
    record = request.tokenise
    if record is None:
        return []
    attributes: Attributes = {
        "code.function.name": "vllm_lite.frontend.input_processor.InputProcessor.process_inputs",
        "gen_ai.usage.input_tokens": record.num_prompt_tokens,
    }
    span_id = derived_id(request.accept.span_id, "tokenise")
    name = "input_processor.process_inputs"
    return [_span(request, name, Kind.INTERNAL, (record.t0, record.t1), span_id, attributes=attributes)]


def _posts(request: RequestJourney, root: Span) -> list[Span]:
    """The send spans, each below its own `sample` span where the request asked for several answers."""
    spans = []
    for post in request.posts:
        attributes: Attributes = {
            **messaging("send", "send", "engine_core.inputs"),
            "messaging.message.id": post.internal_id,
            "messaging.message.body.size": post.body_size,
            "vllm_lite.engine_index": post.engine_index,
        }
        span = _span(request, "send engine_core.inputs", Kind.PRODUCER, (post.t0, post.t1), post.span_id, attributes=attributes)
        if len(request.posts) > 1:
            sample = _sample(request, post, root.end)
            span.parent_span_id = sample.span_id
            spans.append(sample)
        spans.append(span)
    return spans


def _sample(request: RequestJourney, post: rec.Post, root_end: int) -> Span:
    """One of n answers: from its post to the bag that brought its last letter, or to the request's end."""
    wall = request.process.wall
    stay = next((stay for stay in request.stays if stay.post is post), None)
    last = stay.spells[-1].shares.last if stay and stay.t_finished is not None else None
    bags = [bag for bag in last.step.bags if bag.process is request.process] if last else []
    end = min([root_end, *(wall(bag.sort.t_done) for bag in bags)])
    attributes = known(
        {
            "vllm_lite.sample.index": post.sample,
            "vllm_lite.internal_id": post.internal_id,
            "gen_ai.response.finish_reasons": [stay.finish_reason] if stay and stay.finish_reason else None,
        }
    )
    span_id = derived_id(request.accept.span_id, "sample", post.sample)
    span = _span(request, f"sample {post.sample}", Kind.INTERNAL, (post.t0, post.t1), span_id, attributes=attributes)
    span.end = max(span.end, end)
    return span


def _mailbox(request: RequestJourney) -> list[Span]:
    """From the first put to the last take (level 2 and up)."""
    wall = request.process.wall
    put = [letter for letter in request.letters if letter.fate in (rec.PUT, rec.STAPLED)]
    if not put:
        return []
    events = [_put_event(letter) for letter in put] + [
        Event("collector.take", wall(take.t), {"tokens": take.tokens, "wait_us": take.wait / 1000}) for take in request.takes
    ]
    events.sort(key=lambda event: event.t)
    span_id = derived_id(request.accept.span_id, "mailbox")
    span = _span(request, "mailbox", Kind.INTERNAL, (0, 0), span_id, attributes={"vllm_lite.takes": request.takes.count})
    span.start, span.end, span.events = events[0].t, events[-1].t, events
    span.dropped_events = request.letters.skipped + request.takes.skipped
    return [span]


def _put_event(letter: Letter) -> Event:
    name = "collector.merge" if letter.fate == rec.STAPLED else "collector.put"
    return Event(name, _put_time(letter), {"tokens": letter.tokens})


def _aborts(request: RequestJourney) -> list[Span]:
    spans = []
    for abort in request.aborts:
        attributes: Attributes = {
            **messaging("abort", "send", "engine_core.inputs"),
            "messaging.batch.message_count": len(abort.internal_ids),
            "vllm_lite.abort.reason": abort.reason,
        }
        spans.append(
            _span(request, "abort engine_core", Kind.PRODUCER, (abort.t, abort.t), abort.span_id, attributes=attributes)
        )
    return spans


def _abort_receipts(request: RequestJourney) -> list[Span]:
    """The engine core's side: from the message to the request's leave, with what had been made too much."""
    seen: dict[int, tuple[Process, rec.ReceiveAbort]] = {
        id(receipt): (process, receipt) for process, receipt in request.abort_receipts
    }
    return [_abort_receipt(request, process, receipt) for process, receipt in seen.values()]


def _abort_receipt(request: RequestJourney, process: Process, receipt: rec.ReceiveAbort) -> Span:
    ids = {post.internal_id for post in request.posts}.intersection(receipt.internal_ids)
    senders = [parse_traceparent(receipt.headers.get(internal_id)) for internal_id in sorted(ids)]
    own = [abort.span_id for abort in request.aborts if ids.intersection(abort.internal_ids)]
    parent = next((sender.span_id for sender in senders if sender), own[0] if own else request.accept.span_id)
    leaves = [stay.leave for stay in request.stays if stay.leave and stay.receive and stay.receive.internal_id in ids]
    attributes: Attributes = {
        **messaging("process", "process", "engine_core.inputs"),
        "messaging.batch.message_count": len(ids),
        "vllm_lite.abort.reason": receipt.reason,
        "vllm_lite.late_outputs": len(request.late),
        "vllm_lite.status": [leave.status for leave in leaves],
    }
    return Span(
        process,
        request.accept.trace_id,
        derived_id(parent, "abort", receipt.t),
        parent,
        "process engine_core.abort",
        Kind.CONSUMER,
        process.wall(receipt.t),
        process.wall(max([receipt.t, *(leave.t for leave in leaves)])),
        attributes,
        remote_parent=True,
    )
