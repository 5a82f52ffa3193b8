"""One step's trace: the engine core, its workers, and each bag in the front end, sorted slice by slice.

Process: readers. Knows: StepJourney and Bag, the conventions for names and attributes. Does not know: a request's phases.
Mirrors: nothing in vLLM.
"""

from collections.abc import Iterator

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.context import parse_traceparent
from vllm_lite.tracing.journey import LATE, Bag, Letter, RequestJourney, Stay, StepJourney
from vllm_lite.tracing.process import Process
from vllm_lite.tracing.spans.model import REQUEST_ID, STEP_INDEX, Attributes, Event, Kind, Link, Span, derived_id, messaging

CODE, SCHEDULER = "code.function.name", "vllm_lite.engine_core.scheduler.Scheduler"
EXECUTOR, WORKER = "vllm_lite.engine_core.executor.abstract.Executor", "vllm_lite.worker.worker.Worker"
_EVENT_NAMES = {rec.PUT: "collector.put", rec.STAPLED: "collector.merge", rec.KEPT_BACK: "collector.keep_back"}


def step_spans(step: StepJourney) -> list[Span]:
    """All spans of the step's trace, the root first."""
    root = _root(step)
    children = [*_stages(step, root), *_sends(step, root)]
    root.hold(children)
    return [root, *children, *(span for bag in step.bags for span in bag_spans(bag))]


def bag_spans(bag: Bag) -> list[Span]:
    """The bag in the front end and all below it; nothing for a bag whose step was not traced."""
    sent_by = parse_traceparent(bag.sort.trace)
    if sent_by is None:
        return []
    whole = _process(bag, sent_by.trace_id, sent_by.span_id)
    return [whole, *_slices(bag, whole), *_aborts(bag, whole)]


# ---- engine core and workers ----------------------------------------------------------------------------------------------


def _root(step: StepJourney) -> Span:
    schedule = step.schedule
    span = Span.recorded(step.process, schedule, "engine_core.step", Kind.INTERNAL, (schedule.t0, step.t_end))
    span.attributes = {
        STEP_INDEX: schedule.step,
        "vllm_lite.num_requests": schedule.num_requests,
        "vllm_lite.num_prefill": schedule.num_prefill,
        "vllm_lite.num_tokens": schedule.num_tokens,
        "vllm_lite.num_running": schedule.num_running,
        "vllm_lite.num_waiting": schedule.num_waiting,
        "vllm_lite.kv.usage": schedule.kv_usage,
        "vllm_lite.preempted": len(schedule.preempted),
        "vllm_lite.blocks_evicted": schedule.num_evicted,
        "vllm_lite.blocks_refused": schedule.num_refused,
    }
    span.links = _links(step)
    if step.update is None:
        span.leave_open("the engine core died during this step")
    return span


def _links(step: StepJourney) -> list[Link]:
    """To the root span of each traced request in the step, with the tokens granted to all its samples."""
    shares = zip(step.members, step.schedule.tokens, strict=False)  # a step that was forgotten has no members
    found = [(tokens == 1 and stay.link) or _link(stay, tokens) for stay, tokens in shares]
    links, sampled = list(filter(None, found)), dict[RequestJourney, int]()
    if len(links) < len(found):
        for stay, tokens in zip(step.members, step.schedule.tokens, strict=True):
            if stay.request is not None and stay.request.has_samples:
                sampled[stay.request] = sampled.get(stay.request, 0) + tokens
    return links + [_to(request.accept, request.accept.external_id, tokens) for request, tokens in sampled.items()]


def _link(stay: Stay, tokens: int) -> Link | None:
    """None for one of several samples, which are linked together, and for one of whom hardly anything is known."""
    link = None
    if stay.request is not None and not stay.request.has_samples:
        link = _to(stay.request.accept, stay.request.accept.external_id, tokens)
    elif stay.request is None and stay.receive is not None:  # its front end's spool is lost: the stay is the highest span
        link = _to(stay.receive, stay.receive.internal_id, tokens)
    if tokens == 1:
        stay.link = link
    return link


def _to(span: rec.Accept | rec.Receive, request_id: str, tokens: int) -> Link:
    return Link(span.trace_id, span.span_id, {REQUEST_ID: request_id, "vllm_lite.num_tokens": tokens})


def _stages(step: StepJourney, root: Span) -> list[Span]:
    """The plan; the executor's call and what each rank did in it; the result worked in."""
    schedule, execute, update = step.schedule, step.execute, step.update
    attributes: Attributes = {CODE: f"{SCHEDULER}.schedule"}
    spans = [root.child("scheduler.schedule", Kind.INTERNAL, (schedule.t0, schedule.t1), attributes)]
    if execute is not None:
        attributes = {CODE: f"{EXECUTOR}.execute_model", "vllm_lite.num_tokens": schedule.num_tokens}
        t = execute.t0, execute.t1
        call = root.child("executor.execute_model", Kind.CLIENT, t, attributes, span_id=execute.span_id)
        spans += [call, *(part for process, work in step.works for part in _work(process, work, call))]
    if update is not None:
        attributes = {
            CODE: f"{SCHEDULER}.update_from_output",
            "vllm_lite.num_finished": len(update.finished),
            "vllm_lite.stale_tokens": sum(count for _, count in update.stale),
        }
        spans.append(root.child("scheduler.update_from_output", Kind.INTERNAL, (update.t0, update.t1), attributes))
    return spans


def _work(process: Process, work: rec.Work, execute: Span) -> list[Span]:
    attributes: Attributes = {CODE: f"{WORKER}.execute_model", STEP_INDEX: work.step, "vllm_lite.rank": work.rank}
    if work.device_ns is not None:
        attributes["vllm_lite.device_time"] = work.device_ns / 1e9
    name, t = "worker.execute_model", (work.t0, work.t3)
    whole = execute.child(name, Kind.SERVER, t, attributes, span_id=work.span_id, process=process)
    parts = {"prepare": (work.t0, work.t1), "forward": (work.t1, work.t2), "sample": (work.t2, work.t3)}
    return [whole, *(whole.child(f"worker.{part}", Kind.INTERNAL, times) for part, times in parts.items())]


def _sends(step: StepJourney, root: Span) -> Iterator[Span]:
    """Each client's bag on its way out: encoded and handed to the socket."""
    for send in step.sends:
        attributes: Attributes = {
            **messaging("send", "send", "engine_core.outputs"),
            "messaging.batch.message_count": send.num_outputs,
            "messaging.message.body.size": send.body_size,
            "vllm_lite.client_index": send.client_index,
            "vllm_lite.queued_us": max(send.t0 - send.t_queued, 0) / 1000,
            "vllm_lite.encode_us": (send.t1 - send.t0) / 1000,
        }
        yield root.child("send engine_core.outputs", Kind.PRODUCER, (send.t0, send.t2), attributes, span_id=send.span_id)


# ---- front end ------------------------------------------------------------------------------------------------------------


def _process(bag: Bag, trace_id: str, sender: str) -> Span:
    sort = bag.sort
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
    name, times = "process engine_core.outputs", (bag.process.wall(sort.t_received), bag.process.wall(sort.t_done))
    ids = trace_id, derived_id(sender, "sort"), sender
    span = Span(bag.process, *ids, name, Kind.CONSUMER, *times, attributes, remote_parent=True)
    span.events = [Event("letter.late", span.end, {"vllm_lite.internal_id": late, "tokens": n}) for late, n in sort.late]
    send = bag.send
    if send is not None and bag.step is not None:
        span.attributes["vllm_lite.wire_us"] = max(span.start - bag.step.process.wall(send.t2), 0) / 1000
    else:  # the engine core was killed before it could write down what it had sent
        span.parent_span_id = bag.step.schedule.span_id if bag.step else None
        span.leave_open()
    return span


def _slices(bag: Bag, whole: Span) -> Iterator[Span]:
    done_before, letters = 0, bag.letters if bag.sort.reqs else []
    for index, (t0, t1, size) in enumerate(bag.sort.slices):
        if index:
            yield whole.child("yield_to_loop", Kind.INTERNAL, (done_before, t0), number=index)
        attributes: Attributes = {"vllm_lite.slice.index": index, "vllm_lite.slice.size": size}
        span = whole.child("output_processor.slice", Kind.INTERNAL, (t0, t1), attributes, number=index)
        span.events = [_event(letter, span.end) for letter in letters if letter.slice == index and letter.fate != LATE]
        yield span
        done_before = t1


def _event(letter: Letter, t: int) -> Event:
    attributes: Attributes = {"tokens": letter.tokens}
    if letter.request is not None:
        attributes[REQUEST_ID] = letter.request.accept.external_id
    return Event(_EVENT_NAMES[letter.fate], t, attributes)


def _aborts(bag: Bag, whole: Span) -> Iterator[Span]:
    """What this bag's stop strings made the front end send, linked to the abort span of each request."""
    if not bag.aborts:
        return
    attributes: Attributes = {
        **messaging("send", "send", "engine_core.inputs"),
        "messaging.batch.message_count": len(bag.aborts),
        "vllm_lite.abort.reason": "stop_string",
    }
    times = [abort.t for _, abort in bag.aborts]
    span = whole.child("send engine_core.abort", Kind.PRODUCER, (min(times), max(times)), attributes)
    accepted = [(request.accept, abort.span_id) for request, abort in bag.aborts]
    span.links = [Link(accept.trace_id, span_id, {REQUEST_ID: accept.external_id}) for accept, span_id in accepted]
    yield span
