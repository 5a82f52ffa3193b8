"""What a process tells about itself: the phases of its start-up, and deaths.

Process: readers. Knows: Phase and EngineDead records. Does not know: requests.
Mirrors: vllm/tracing (the @instrument spans)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.process import Process
from vllm_lite.tracing.spans.model import ENGINE_DEAD, Kind, Span, derived_id, derived_trace_id

Phases = Sequence[tuple[Process, rec.Phase]]


def life_spans(phases: Phases, deaths: Iterable[tuple[Process, rec.EngineDead]], first_request: int | None) -> Iterator[Span]:
    """Start-up, later phases (waking up, loading new weights), each a trace of its own, and deaths. `first_request` (wall ns)
    is what tells start-up from later."""
    early = [(process, p) for process, p in phases if first_request is None or process.wall(p.t0) <= first_request]
    yield from _start_up(early)
    for process, phase in phases:
        if first_request is not None and process.wall(phase.t0) > first_request:
            yield _phase(process, phase, derived_trace_id("phase", *_place(process), phase.name, phase.t0))
    for process, death in deaths:
        trace_id = derived_trace_id("death", *_place(process), death.engine_index, death.t)
        t = process.wall(death.t)
        span = Span(process, trace_id, derived_id(trace_id), None, "engine_core.death", Kind.INTERNAL, t, t)
        span.attributes["vllm_lite.engine_index"] = death.engine_index
        span.fail(ENGINE_DEAD, "the engine core died")
        yield span


def _start_up(phases: Phases) -> list[Span]:
    """One trace of all phases up to the first request: a root, below it each process's phases, nested by time."""
    if not phases:
        return []
    first, _ = min(phases, key=lambda item: (item[0].wall(item[1].t0), item[0].role))
    trace_id = derived_trace_id("start", *_place(first), *sorted(f"{p.role}-{p.pid}-{r.name}-{r.t0}" for p, r in phases))
    spans = [_phase(process, phase, trace_id) for process, phase in sorted(phases, key=lambda p: (p[1].t0, -p[1].t1))]
    start, end = min(span.start for span in spans), max(span.end for span in spans)
    root = Span(first, trace_id, derived_id(trace_id, "start"), None, "engine.start", Kind.INTERNAL, start, end)
    open_spans: dict[int, list[Span]] = {}  # of each process, the phases that hold what comes next
    for span in spans:
        stack = open_spans.setdefault(id(span.process), [root])
        while len(stack) > 1 and span.end > stack[-1].end:
            stack.pop()
        span.parent_span_id = stack[-1].span_id
        stack.append(span)
    return [root, *spans]


def _phase(process: Process, phase: rec.Phase, trace_id: str) -> Span:
    span_id = derived_id(trace_id, process.role, process.pid, phase.name, phase.t0)
    return Span(process, trace_id, span_id, None, phase.name, Kind.INTERNAL, process.wall(phase.t0), process.wall(phase.t1))


def _place(process: Process) -> tuple[str, str, str, int]:
    return process.host, process.boot_id, process.role, process.pid
