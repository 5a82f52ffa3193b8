"""What a process tells about itself: the phases of its start-up, and deaths.

Process: readers. Knows: Phase and EngineDead records. Does not know: requests.
Mirrors: vllm/tracing (the @instrument spans)
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.process import Process
from vllm_lite.tracing.spans.model import ENGINE_DEAD, Kind, Span, derived_id, derived_trace_id

Phases = Sequence[tuple[Process, rec.Phase]]


def start_up_spans(phases: Phases) -> list[Span]:
    """One trace of all phases up to the first request: a root, below it each process's phases, nested by time."""
    if not phases:
        return []
    first, _ = min(phases, key=lambda item: (item[0].wall(item[1].t0), item[0].role))
    trace_id = derived_trace_id(
        "start", first.host, first.boot_id, *sorted(f"{p.role}-{p.pid}-{r.name}-{r.t0}" for p, r in phases)
    )
    start = min(process.wall(phase.t0) for process, phase in phases)
    end = max(process.wall(phase.t1) for process, phase in phases)
    root = Span(first, trace_id, derived_id(trace_id, "start"), None, "engine.start", Kind.INTERNAL, start, end)
    return [root, *_nested(phases, root)]


def _nested(phases: Phases, root: Span) -> list[Span]:
    spans: list[Span] = []
    open_spans: dict[int, list[Span]] = {}  # of each process, the phases that hold what comes next
    for process, phase in sorted(phases, key=lambda item: (item[1].t0, -item[1].t1)):
        stack = open_spans.setdefault(id(process), [root])
        span = _phase(process, phase, root.trace_id)
        while len(stack) > 1 and span.end > stack[-1].end:
            stack.pop()
        span.parent_span_id = stack[-1].span_id
        stack.append(span)
        spans.append(span)
    return spans


def later_phase_span(process: Process, phase: rec.Phase) -> Span:
    """A phase after the first request (waking up, loading new weights): a trace of its own."""
    trace_id = derived_trace_id("phase", process.host, process.boot_id, process.role, process.pid, phase.name, phase.t0)
    return _phase(process, phase, trace_id)


def _phase(process: Process, phase: rec.Phase, trace_id: str) -> Span:
    span_id = derived_id(trace_id, process.role, process.pid, phase.name, phase.t0)
    return Span(process, trace_id, span_id, None, phase.name, Kind.INTERNAL, process.wall(phase.t0), process.wall(phase.t1))


def death_span(process: Process, death: rec.EngineDead) -> Span:
    """The moment at which the front end learned that an engine core is dead."""
    trace_id = derived_trace_id("death", process.host, process.boot_id, process.pid, death.engine_index, death.t)
    t = process.wall(death.t)
    span = Span(process, trace_id, derived_id(trace_id), None, "engine_core.death", Kind.INTERNAL, t, t)
    span.attributes["vllm_lite.engine_index"] = death.engine_index
    span.fail(ENGINE_DEAD, "the engine core died")
    return span
