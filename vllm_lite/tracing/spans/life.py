"""What belongs to no request and no step: the phases of a process's life, deaths, and calls of an engine core's methods.

Process: readers. Knows: Phase, EngineDead, Call and Serve records. Does not know: requests.
Mirrors: vllm/tracing (the @instrument spans)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import UtilityCall
from vllm_lite.tracing.process import Process
from vllm_lite.tracing.spans.model import ENGINE_DEAD, INCOMPLETE, Attributes, Kind, Link, Span, derived_id, derived_trace_id

Phases = Sequence[tuple[Process, rec.Phase]]


def life_spans(phases: Phases, deaths: Iterable[tuple[Process, rec.EngineDead]]) -> Iterator[Span]:
    """The phases, each below the shortest that holds it in its own process or else in the one that started that; and deaths.

    So a whole start-up is one trace under the front end's `engine.start`. What nothing holds is a trace of its own.
    """
    spans: list[Span] = []
    for process, phase in sorted(phases, key=lambda item: (item[0].wall(item[1].t0), -item[0].wall(item[1].t1))):
        t0, t1 = process.wall(phase.t0), process.wall(phase.t1)
        around = [span for span in spans if span.start <= t0 and t1 <= span.end]
        own = [span for span in around if span.process is process]
        above = own or [span for span in around if _started(span.process, process)]
        spans.append(_phase(process, phase, min(above, key=lambda span: span.end - span.start, default=None)))
    yield from spans
    for process, death in deaths:
        trace_id = derived_trace_id("death", *_place(process), death.engine_index, death.t)
        t = process.wall(death.t)
        span = Span(process, trace_id, derived_id(trace_id), None, "engine_core.death", Kind.INTERNAL, t, t)
        span.attributes["vllm_lite.engine_index"] = death.engine_index
        span.fail(ENGINE_DEAD, death.reason or "the engine core died")
        yield span


def call_spans(call: UtilityCall) -> list[Span]:
    """The caller's span and the engine core's below it, which it links to; of a lost caller's the latter alone."""
    if call.serve is None:
        return [_caller(*call.call)] if call.call is not None else []
    served = _served(*call.serve)
    if call.call is None:
        served.parent_span_id, served.attributes[INCOMPLETE] = None, True
        return [served]
    caller = _caller(*call.call)
    caller.links = [Link(served.trace_id, served.span_id, {})]
    return [caller, served]


def _caller(process: Process, call: rec.Call) -> Span:
    times = process.wall(call.t0), process.wall(call.t1)
    span = Span(process, call.trace_id, call.span_id, None, _name(call), Kind.CLIENT, *times, _rpc(call))
    span.attributes["vllm_lite.engine_index"] = call.engine_index
    return _failed(span, call.error)


def _served(process: Process, serve: rec.Serve) -> Span:
    ids, times = (serve.trace_id, serve.span_id, serve.parent_span_id), (process.wall(serve.t_received), process.wall(serve.t1))
    span = Span(process, *ids, _name(serve), Kind.SERVER, *times, _rpc(serve), remote_parent=True)
    span.attributes["vllm_lite.queued_us"] = (serve.t0 - serve.t_received) / 1000
    return _failed(span, serve.error)


def _name(record: rec.Call | rec.Serve) -> str:
    return f"engine_core/{record.method}"


def _rpc(record: rec.Call | rec.Serve) -> Attributes:
    names = {"rpc.system": "zeromq", "rpc.service": "engine_core", "rpc.method": record.method}
    return {**names, "vllm_lite.call_id": record.call_id}


def _failed(span: Span, error: rec.Error | None) -> Span:
    if error is not None:
        span.fail(*error)
    return span


def _phase(process: Process, phase: rec.Phase, parent: Span | None) -> Span:
    place = _place(process)
    trace_id = parent.trace_id if parent is not None else derived_trace_id("phase", *place, phase.name, phase.t0)
    ids = trace_id, derived_id("phase", *place, phase.name, phase.t0), parent.span_id if parent is not None else None
    times = process.wall(phase.t0), process.wall(phase.t1)
    return _failed(Span(process, *ids, phase.name, Kind.INTERNAL, *times), phase.error)


def _started(parent: Process, child: Process) -> bool:
    """Whether `child` is a place within `parent`, or a process that it started."""
    return (parent.host, parent.boot_id) == (child.host, child.boot_id) and parent.pid in (child.pid, child.parent_pid)


def _place(process: Process) -> tuple[str, str, str, int]:
    return process.host, process.boot_id, process.role, process.pid
