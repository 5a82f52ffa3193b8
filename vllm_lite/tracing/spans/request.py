"""One request's trace: the caller's view in the front end.

Process: readers. Knows: RequestJourney, the conventions for names and attributes. Does not know: steps from the inside.
Mirrors: vllm/v1/engine/output_processor.py (do_tracing), of which it makes one span for each thing that happened
"""

from collections.abc import Iterator

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.context import parse_traceparent
from vllm_lite.tracing.journey import RequestJourney
from vllm_lite.tracing.spans.model import REQUEST_ID, STEP_INDEX, Attributes, Event, Kind, Span, known, messaging
from vllm_lite.tracing.spans.stay import queue_time_ns, stay_spans

_UNMEASURED = ("rejected", "invalid")  # outcomes of requests that used nothing


def request_spans(request: RequestJourney) -> list[Span]:
    """All spans of the request's trace, the root first."""
    root = _root(request)
    children = [*_tokenise(request, root), *_posts(request, root), *_mailbox(request, root), *_aborts(request, root)]
    root.hold(children)
    stays = [span for stay in request.stays for span in stay_spans(stay)]
    return [root, *children, *stays, *_abort_receipts(request, root)]


def _root(request: RequestJourney) -> Span:
    accept, close, process = request.accept, request.close, request.process
    t = accept.t, close.t if close else max(process.t_last, accept.t)
    span = Span.recorded(process, accept, f"{accept.operation} {accept.model}", Kind.SERVER, t)
    span.attributes, span.events, span.tracestate = _asked(request), _token_events(request), accept.tracestate
    span.dropped_events = request.places.skipped
    if close is None:
        span.leave_open("the front end died before the request ended")
        return span
    span.attributes |= _answered(request, close)
    if close.outcome != "finished":
        span.fail(close.error_type or close.outcome, close.error_message or close.outcome)
    return span


def _asked(request: RequestJourney) -> Attributes:
    accept, internal_ids = request.accept, request.internal_ids
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
    measured, first = close.outcome not in _UNMEASURED, close.t_first_token
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


def _token_events(request: RequestJourney) -> list[Event]:
    """One for each letter; `index` counts the tokens before it, those of letters that were cut away too."""
    if not request.bags:
        return []
    rows, events, index = request.rows, list[Event](), 0
    for place, (bag, (t, tokens, fate)) in enumerate(zip(request.bags, rows, strict=True)):
        if place == request.places.gap:
            index = request.num_tokens - sum(num_new for _, num_new, _ in rows[place:])
        attributes: Attributes = {"index": index, "n": tokens, "merged": fate == rec.STAPLED}
        if bag.step is not None:
            attributes[STEP_INDEX] = bag.step.index
        events.append(Event("gen_ai.token.generated", request.process.wall(t), attributes))
        index += tokens
    return events


def _tokenise(request: RequestJourney, root: Span) -> Iterator[Span]:
    for number, record in enumerate(request.tokenised):
        attributes: Attributes = {
            "code.function.name": "vllm_lite.frontend.input_processor.InputProcessor.process_inputs",
            "gen_ai.usage.input_tokens": record.num_prompt_tokens,
        }
        name, t = "input_processor.process_inputs", (record.t0, record.t1)
        yield root.child(name, Kind.INTERNAL, t, attributes, number=number)


def _posts(request: RequestJourney, root: Span) -> Iterator[Span]:
    """The send spans, each below its own `sample` span where the request asked for several answers."""
    for post in request.posts:
        parent = root
        if request.has_samples:
            parent = _sample(request, post, root)
            yield parent
        attributes: Attributes = {
            **messaging("send", "send", "engine_core.inputs"),
            "messaging.message.id": post.internal_id,
            "messaging.message.body.size": post.body_size,
            "vllm_lite.engine_index": post.engine_index,
        }
        if post.choice:
            attributes |= {"vllm_lite.engine_choice": post.choice, "vllm_lite.engine_scores": list(post.scores)}
        t = post.t0, post.t1
        yield parent.child("send engine_core.inputs", Kind.PRODUCER, t, attributes, span_id=post.span_id)


def _sample(request: RequestJourney, post: rec.Post, root: Span) -> Span:
    """One of n answers: from its post to the bag that brought its last letter, or to the request's end."""
    stay = next((stay for stay in request.stays if stay.post is post), None)
    last = stay.spells[-1].steps[-1:] if stay and stay.t_finished is not None else []
    bags = [bag for step in last for bag in step.bags if bag.process is request.process]
    attributes = known(
        {
            "vllm_lite.sample.index": post.sample,
            "vllm_lite.internal_id": post.internal_id,
            "gen_ai.response.finish_reasons": [stay.finish_reason] if stay and stay.finish_reason else None,
        }
    )
    span = root.child(f"sample {post.sample}", Kind.INTERNAL, (post.t0, post.t1), attributes)
    span.end = max(span.end, min([root.end, *(request.process.wall(bag.sort.t_done) for bag in bags)]))
    return span


def _mailbox(request: RequestJourney, root: Span) -> list[Span]:
    """From the first put to the last take (level 2 and up)."""
    if not request.bags:
        return []
    wall = request.process.wall
    puts = [
        Event("collector.put" if fate == rec.PUT else "collector.merge", wall(t), {"tokens": tokens})
        for t, tokens, fate in request.rows
        if fate != rec.KEPT_BACK
    ]
    if not puts:
        return []
    takes = [
        Event("collector.take", wall(take.t), {"tokens": take.tokens, "wait_us": take.wait / 1000}) for take in request.takes
    ]
    events = sorted(puts + takes, key=lambda event: event.t)
    span = root.child("mailbox", Kind.INTERNAL, (0, 0), {"vllm_lite.takes": request.t_takes.total})
    span.start, span.end, span.events = events[0].t, events[-1].t, events
    span.dropped_events = request.places.skipped + request.t_takes.skipped
    return [span]


def _aborts(request: RequestJourney, root: Span) -> Iterator[Span]:
    for abort in request.aborts:
        attributes: Attributes = {
            **messaging("abort", "send", "engine_core.inputs"),
            "messaging.batch.message_count": len(abort.internal_ids),
            "vllm_lite.abort.reason": abort.reason,
        }
        yield root.child("abort engine_core", Kind.PRODUCER, (abort.t, abort.t), attributes, span_id=abort.span_id)


def _abort_receipts(request: RequestJourney, root: Span) -> Iterator[Span]:
    """The engine core's side of each abort, once each: from the message to the request's leave."""
    seen = {id(receipt): (process, receipt) for process, receipt in request.abort_receipts}
    for process, receipt in seen.values():
        ids = set(request.internal_ids).intersection(receipt.internal_ids)
        leaves = [stay.leave for stay in request.stays if stay.leave and stay.receive and stay.receive.internal_id in ids]
        attributes: Attributes = {
            **messaging("process", "process", "engine_core.inputs"),
            "messaging.batch.message_count": len(ids),
            "vllm_lite.abort.reason": receipt.reason,
            "vllm_lite.late_outputs": len(request.late),
            "vllm_lite.status": [leave.status for leave in leaves],
        }
        t = receipt.t, max([receipt.t, *(leave.t for leave in leaves)])
        span = root.child("process engine_core.abort", Kind.CONSUMER, t, attributes, process=process, number=receipt.t)
        senders = [parse_traceparent(receipt.headers.get(internal_id)) for internal_id in sorted(ids)]
        above = [sender.span_id for sender in senders if sender]
        above += [abort.span_id for abort in request.aborts if ids.intersection(abort.internal_ids)]
        span.parent_span_id = above[0] if above else root.span_id
        yield span
