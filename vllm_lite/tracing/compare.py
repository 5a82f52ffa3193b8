"""Two runs side by side: what came of each, and the time at each station.

Process: `vllm-lite trace diff`, notebooks. Knows: the journey model. Does not know: screens.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.journey.times import STOPS, station_times


class Figures(NamedTuple):
    """All visits to one stop; nanoseconds."""

    visits: int
    mean: float
    p50: float
    p99: float
    total: int

    @classmethod
    def of(cls, values: Sequence[int]) -> Figures | None:
        """Of these visits; None where there was none."""
        if not values:
            return None
        ordered, total = sorted(values), sum(values)
        return cls(len(ordered), total / len(ordered), quantile(ordered, 0.5), quantile(ordered, 0.99), total)


class Pair(NamedTuple):
    """One figure of both runs, None where a run has none."""

    name: str
    a: float | None
    b: float | None

    @property
    def ratio(self) -> float | None:
        """b over a; None where that says nothing."""
        return self.b / self.a if self.a and self.b is not None else None


class Difference(NamedTuple):
    """`facts` are counts and rates; `stops` are the mean times in ns, with all figures of both runs beside them."""

    facts: list[Pair]
    stops: list[tuple[Pair, Figures | None, Figures | None]]


def compare(a: Run, b: Run) -> Difference:
    """Fact by fact and station by station."""
    first, second = facts(a), facts(b)
    times_a, times_b = station_times(a), station_times(b)
    stops = [(stop, Figures.of(times_a[stop]), Figures.of(times_b[stop])) for stop in STOPS]
    return Difference(
        [Pair(name, first[name], second[name]) for name in first],
        [(Pair(stop, x.mean if x else None, y.mean if y else None), x, y) for stop, x, y in stops if x or y],
    )


def facts(run: Run) -> dict[str, float | None]:
    """What a run comes to, by name. Seconds run from the first accept to the last close."""
    closes = [request.close for request in run.requests if request.close]
    firsts = sorted(r.close.t_first_token - r.accept.t for r in run.requests if r.close and r.close.t_first_token is not None)
    start = min((request.process.wall(request.accept.t) for request in run.requests), default=0)
    end = max((request.process.wall(request.close.t) for request in run.requests if request.close), default=start)
    tokens = sum(close.num_output_tokens for close in closes)
    return {
        "requests": len(run.requests),
        "finished": sum(close.outcome == "finished" for close in closes),
        "prompt tokens": sum(close.num_prompt_tokens for close in closes),
        "cached tokens": sum(close.num_cached_tokens for close in closes),
        "answer tokens": tokens,
        "seconds": (end - start) / 1e9,
        "answer tokens a second": tokens * 1e9 / (end - start) if end > start else None,
        "first token, p50 s": quantile(firsts, 0.5) / 1e9 if firsts else None,
        "first token, p99 s": quantile(firsts, 0.99) / 1e9 if firsts else None,
        "steps": len(run.steps),
        "requests in a step": sum(step.schedule.num_requests for step in run.steps) / len(run.steps) if run.steps else None,
        "preemptions": sum(len(step.schedule.preempted) for step in run.steps),
        "bags": len(run.bags),
        "staples": sum(close.staples for close in closes),
        "aborts": sum(len(request.aborts) for request in run.requests),
        "late letters": sum(len(bag.sort.late) for bag in run.bags),
    }


def quantile(ordered: Sequence[int], share: float) -> float:
    """The value below which `share` of the sorted values lie, the nearest that is there."""
    return float(ordered[min(int(share * len(ordered)), len(ordered) - 1)])
