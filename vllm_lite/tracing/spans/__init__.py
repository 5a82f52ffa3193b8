"""From journeys to spans: both families of traces, the requests' and the steps', linked both ways.

Process: readers. Knows: the journey model and the conventions. Does not know: where spans go.
Mirrors: nothing in vLLM.
"""

from collections.abc import Iterator

from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.spans.life import call_spans, life_spans
from vllm_lite.tracing.spans.model import Event, Kind, Link, Span
from vllm_lite.tracing.spans.request import request_spans
from vllm_lite.tracing.spans.stay import stay_spans
from vllm_lite.tracing.spans.step import bag_spans, step_spans

__all__ = [
    "Event", "Kind", "Link", "Span", "bag_spans", "call_spans", "life_spans", "request_spans", "run_spans",
    "stay_spans", "step_spans",
]  # fmt: skip


def run_spans(run: Run) -> Iterator[Span]:
    """All spans of a run, trace by trace."""
    yield from life_spans(run.phases, run.deaths)
    for call in run.calls:
        yield from call_spans(call)
    for request in run.requests:
        yield from request_spans(request)
    for stay in run.strays:
        yield from stay_spans(stay)
    for step in run.steps:
        yield from step_spans(step)
    for bag in run.bags:
        if bag.step is None:
            yield from bag_spans(bag)
