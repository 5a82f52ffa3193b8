"""What belongs to no request and no step: the phases of a process's life, deaths, and calls of an engine core's methods.

Process: readers. Knows: Phase, EngineDead, Call and Serve records. Does not know: requests.
Mirrors: vllm/tracing (the @instrument spans)
"""

from collections.abc import Iterable, Iterator, Sequence

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey.model import UtilityCall
from vllm_lite.tracing.process import Process
from vllm_lite.tracing.spans.model import ENGINE_DEAD, Kind, Link, Span, derived_id, derived_trace_id

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
    spans: list[Span] = []
    if call.call is not None:
        process, made = call.call
        spans.append(_half(process, made, Kind.CLIENT, made.t0))
        spans[0].attributes["vllm_lite.engine_index"] = made.engine_index
    if call.serve is not None:
        process, serve = call.serve
        spans.append(served := _half(process, serve, Kind.SERVER, serve.t_received))
        served.attributes["vllm_lite.queued_us"] = (serve.t0 - serve.t_received) / 1000
        if call.call is None:
            served.parent_span_id = None
            served.leave_open()
        else:
            spans[0].links = [Link(served.trace_id, served.span_id, {})]
    return spans


def _half(process: Process, half: rec.Call | rec.Serve, kind: Kind, t0: int) -> Span:
    span = Span.recorded(process, half, f"engine_core/{half.method}", kind, (t0, half.t1))
    span.attributes = {"rpc.system": "zeromq", "rpc.service": "engine_core", "rpc.method": half.method}
    span.attributes["vllm_lite.call_id"] = half.call_id
    if half.error is not None:
        span.fail(*half.error)
    return span


def _phase(process: Process, phase: rec.Phase, parent: Span | None) -> Span:
    parts = "phase", *_place(process), phase.name, phase.t0
    trace_id, parent_id = (parent.trace_id, parent.span_id) if parent is not None else (derived_trace_id(*parts), None)
    times = process.wall(phase.t0), process.wall(phase.t1)
    span = Span(process, trace_id, derived_id(*parts), parent_id, phase.name, Kind.INTERNAL, *times)
    if phase.error is not None:
        span.fail(*phase.error)
    return span


def _started(parent: Process, child: Process) -> bool:
    """Whether `child` is a place within `parent`, or a process that it started."""
    return (parent.host, parent.boot_id) == (child.host, child.boot_id) and parent.pid in (child.pid, child.parent_pid)


def _place(process: Process) -> tuple[str, str, str, int]:
    return process.host, process.boot_id, process.role, process.pid
