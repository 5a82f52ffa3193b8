"""From journeys to spans: both families of traces, the requests' and the steps', linked both ways.

Process: readers. Knows: the journey model and the conventions. Does not know: where spans go.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.process import Process
from vllm_lite.tracing.spans.bag import bag_spans
from vllm_lite.tracing.spans.life import Phases, death_span, later_phase_span, start_up_spans
from vllm_lite.tracing.spans.model import Event, Kind, Link, Span
from vllm_lite.tracing.spans.request import request_spans
from vllm_lite.tracing.spans.stay import stay_spans
from vllm_lite.tracing.spans.step import step_spans

__all__ = [
    "Event",
    "Kind",
    "Link",
    "Span",
    "bag_spans",
    "death_span",
    "life_spans",
    "request_spans",
    "run_spans",
    "stay_spans",
    "step_spans",
]


def run_spans(run: Run) -> Iterator[Span]:
    """All spans of a run, trace by trace."""
    accepted = [request.process.wall(request.accept.t) for request in run.requests]
    yield from life_spans(run.phases, run.deaths, min(accepted, default=None))
    for request in run.requests:
        yield from request_spans(request)
    for stay in run.strays:
        yield from stay_spans(stay)
    for step in run.steps:
        yield from step_spans(step)
    for bag in run.bags:
        if bag.step is None:
            yield from bag_spans(bag)


def life_spans(phases: Phases, deaths: Iterable[tuple[Process, rec.EngineDead]], first_request: int | None) -> Iterator[Span]:
    """Start-up, later phases and deaths. `first_request` (wall ns) is what tells start-up from later."""
    early = [(process, p) for process, p in phases if first_request is None or process.wall(p.t0) <= first_request]
    yield from start_up_spans(early)
    for process, phase in phases:
        if first_request is not None and process.wall(phase.t0) > first_request:
            yield later_phase_span(process, phase)
    for process, death in deaths:
        yield death_span(process, death)
