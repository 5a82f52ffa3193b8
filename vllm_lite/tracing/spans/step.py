"""One step's trace in the engine core and its workers; the bag it ends in is in bag.py.

Process: readers. Knows: StepJourney, the conventions for names and attributes. Does not know: a request's phases.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import StepJourney
from vllm_lite.tracing.process import Process
from vllm_lite.tracing.spans.bag import bag_spans
from vllm_lite.tracing.spans.model import (
    ENGINE_DEAD,
    INCOMPLETE,
    REQUEST_ID,
    STEP_INDEX,
    Attributes,
    Kind,
    Link,
    Span,
    derived_id,
    known,
    messaging,
)
from vllm_lite.tracing.spans.stay import step_end


def step_spans(step: StepJourney) -> list[Span]:
    """All spans of the step's trace, the root first."""
    root = _root(step)
    children = [_schedule(step), *_execute(step), *_update(step), *(_send(step, send) for send in step.sends)]
    root.end = max([root.end, *(span.end for span in children if span.parent_span_id == root.span_id)])
    return [root, *children, *(span for bag in step.bags for span in bag_spans(bag))]


def _root(step: StepJourney) -> Span:
    schedule = step.schedule
    attributes: Attributes = {
        STEP_INDEX: schedule.step,
        "vllm_lite.num_requests": schedule.num_requests,
        "vllm_lite.num_prefill": schedule.num_prefill,
        "vllm_lite.num_tokens": schedule.num_tokens,
        "vllm_lite.num_running": schedule.num_running,
        "vllm_lite.num_waiting": schedule.num_waiting,
        "vllm_lite.kv.usage": schedule.kv_usage,
        "vllm_lite.preempted": len(schedule.preempted),
    }
    span = _span(
        step, "engine_core.step", Kind.INTERNAL, (schedule.t0, step_end(step)), schedule.span_id, attributes=attributes
    )
    span.parent_span_id = None
    span.links = _links(step)
    if step.update is None:
        span.attributes[INCOMPLETE] = True
        if step.process.died:
            span.fail(ENGINE_DEAD, "the engine core died during this step")
    return span


def _links(step: StepJourney) -> list[Link]:
    """To the root span of each traced request in the step, with the tokens granted to all its samples."""
    names: dict[tuple[str, str], str] = {}
    granted: dict[tuple[str, str], int] = {}
    for stay, tokens in step.stays:
        if stay.request is not None:
            accept = stay.request.accept
            key, name = (accept.trace_id, accept.span_id), accept.external_id
        elif stay.receive is not None:  # its front end's spool is lost; the stay is the highest span there is
            key, name = (stay.receive.trace_id, stay.receive.span_id), stay.receive.internal_id
        else:
            continue
        names[key] = name
        granted[key] = granted.get(key, 0) + tokens
    return [Link(*key, {REQUEST_ID: name, "vllm_lite.num_tokens": granted[key]}) for key, name in names.items()]


def _span(step: StepJourney, name: str, kind: Kind, t: tuple[int, int], span_id: str, *, attributes: Attributes) -> Span:
    """A span of the engine core right below the root."""
    schedule, wall = step.schedule, step.process.wall
    start, end = wall(t[0]), wall(t[1])
    return Span(step.process, schedule.trace_id, span_id, schedule.span_id, name, kind, start, end, attributes)


def _schedule(step: StepJourney) -> Span:
    schedule = step.schedule
    attributes: Attributes = {"code.function.name": "vllm_lite.engine_core.scheduler.Scheduler.schedule"}
    span_id = derived_id(schedule.span_id, "schedule")
    return _span(step, "scheduler.schedule", Kind.INTERNAL, (schedule.t0, schedule.t1), span_id, attributes=attributes)


def _execute(step: StepJourney) -> list[Span]:
    """The executor's call and what each rank did in it."""
    execute = step.execute
    if execute is None:
        return []
    attributes: Attributes = {
        "code.function.name": "vllm_lite.engine_core.executor.abstract.Executor.execute_model",
        "vllm_lite.num_tokens": step.schedule.num_tokens,
    }
    span = _span(step, "executor.execute_model", Kind.CLIENT, (execute.t0, execute.t1), execute.span_id, attributes=attributes)
    return [span, *(part for process, work in step.works for part in _work(process, work))]


def _work(process: Process, work: rec.Work) -> list[Span]:
    wall = process.wall
    attributes = known(
        {
            "code.function.name": "vllm_lite.worker.worker.Worker.execute_model",
            STEP_INDEX: work.step,
            "vllm_lite.rank": work.rank,
            "vllm_lite.device_time": None if work.device_ns is None else work.device_ns / 1e9,
        }
    )
    times = {"prepare": (work.t0, work.t1), "forward": (work.t1, work.t2), "sample": (work.t2, work.t3)}
    whole = Span(
        process,
        work.trace_id,
        work.span_id,
        work.parent_span_id,
        "worker.execute_model",
        Kind.SERVER,
        wall(work.t0),
        wall(work.t3),
        attributes,
        remote_parent=True,
    )
    parts = [
        Span(
            process,
            work.trace_id,
            derived_id(work.span_id, name),
            work.span_id,
            f"worker.{name}",
            Kind.INTERNAL,
            wall(t0),
            wall(t1),
        )
        for name, (t0, t1) in times.items()
    ]
    return [whole, *parts]


def _update(step: StepJourney) -> list[Span]:
    update = step.update
    if update is None:
        return []
    attributes: Attributes = {
        "code.function.name": "vllm_lite.engine_core.scheduler.Scheduler.update_from_output",
        "vllm_lite.num_finished": len(update.finished),
    }
    span_id = derived_id(step.schedule.span_id, "update")
    return [_span(step, "scheduler.update_from_output", Kind.INTERNAL, (update.t0, update.t1), span_id, attributes=attributes)]


def _send(step: StepJourney, send: rec.Send) -> Span:
    """One client's bag on its way out: encoded and handed to the socket."""
    attributes: Attributes = {
        **messaging("send", "send", "engine_core.outputs"),
        "messaging.batch.message_count": send.num_outputs,
        "messaging.message.body.size": send.body_size,
        "vllm_lite.client_index": send.client_index,
        "vllm_lite.queued_us": max(send.t0 - send.t_queued, 0) / 1000,
        "vllm_lite.encode_us": (send.t1 - send.t0) / 1000,
    }
    return _span(step, "send engine_core.outputs", Kind.PRODUCER, (send.t0, send.t2), send.span_id, attributes=attributes)
