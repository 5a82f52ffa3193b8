"""A histogram that is told of many values at once.

Process: front end. Knows: prometheus_client's way to ask for a metric. Does not know: what is counted.
There is one time between tokens for each token, and in one bag most of them are equal: they cost one look-up together.
Mirrors: nothing in vLLM, which observes one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import isinf

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Tally(Collector):
    """`buckets` are upper bounds, ascending. One series for each of `label_values`, which stands at zero from the start."""

    def __init__(
        self,
        name: str,
        text: str,
        label_names: Sequence[str],
        label_values: Iterable[tuple[str, ...]],
        *,
        registry: CollectorRegistry,
        buckets: Sequence[float],
    ) -> None:
        self._name, self._text, self._label_names = name, text, label_names
        self._bounds = [*buckets, float("inf")]
        self._series = {values: TallySeries(self._bounds) for values in label_values}
        registry.register(self)

    def labels(self, *values: str) -> TallySeries:
        """The series of these label values."""
        return self._series[values]

    def collect(self) -> Iterator[Metric]:
        """What Prometheus reads."""
        metric = HistogramMetricFamily(self._name, self._text, labels=self._label_names)
        for values, series in self._series.items():
            total, buckets = 0, []
            for bound, count in zip(self._bounds, series.counts, strict=True):
                total += count
                buckets.append(("+Inf" if isinf(bound) else str(float(bound)), total))
            metric.add_metric(list(values), buckets, series.sum)
        yield metric


class TallySeries:
    """How many values fell into each bucket, and their sum."""

    def __init__(self, bounds: list[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * len(bounds)
        self.sum = 0.0

    def observe_all(self, values: Iterable[float]) -> None:
        """Count these values."""
        for value, count in Counter(values).items():
            self.counts[bisect_left(self._bounds, value)] += count
            self.sum += value * count
