"""The figures as Prometheus metrics, under vLLM's names, so that dashboards made for vLLM show them.

Process: front end. Knows: prometheus_client. Does not know: HTTP; `registry` is for whoever answers /metrics.
Each logger has a registry of its own: two engines in one process do not mix their figures.
Mirrors: vllm/v1/metrics/loggers.py (PrometheusStatLogger), vllm/v1/metrics/buckets.py
"""

import collections
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from vllm_lite.config import VllmConfig
from vllm_lite.metrics.loggers.base import AggregateStatLoggerBase
from vllm_lite.metrics.stats import IterationStats
from vllm_lite.wire.messages import FINISH_REASON_STRINGS
from vllm_lite.wire.stats import SchedulerStats

SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")  # by level
GAUGES = {
    "num_requests_running": "requests in the running batch",
    "num_requests_waiting": "requests that wait for their first step",
    "kv_cache_usage_perc": "used share of the KV cache, 0 to 1",
}
COUNTERS = {
    "prefix_cache_queries": "prompt tokens looked up in the prefix cache",
    "prefix_cache_hits": "prompt tokens found there",
    "num_preemptions": "requests that lost their KV blocks and were computed again",
    "prompt_tokens": "prompt tokens of requests that began to answer",
    "prompt_tokens_cached": "those of them that the prefix cache held",
    "generation_tokens": "tokens generated",
}
BY_LABEL = {  # what it counts, one more label, and its values
    "num_requests_waiting_by_reason": (Gauge, "who waits, and why", "reason", ("capacity", "deferred")),
    "engine_sleep_state": (Gauge, "1 for the state the engine is in", "sleep_state", SLEEP_STATES),
    "prompt_tokens_by_source": (Counter, "where prompt tokens came from", "source", ("local_compute", "local_cache_hit")),
    "request_success": (Counter, "ended requests by the reason", "finished_reason", FINISH_REASON_STRINGS),
}

SECONDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0)
FIRST_TOKEN_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
LENGTHS = None  # 1, 2, 5, 10, ... up to the longest request

BAG_HISTOGRAMS = {  # what it counts, and its buckets
    "iteration_tokens_total": ("prompt and generated tokens of one bag", (1, *(2**power for power in range(3, 15)))),
    "time_to_first_token_seconds": ("from a request's arrival to its first token", FIRST_TOKEN_SECONDS),
    "inter_token_latency_seconds": ("between two bags with tokens of one request", TOKEN_SECONDS),
    "request_max_num_generation_tokens": ("tokens of a request's longest answer", LENGTHS),
    "request_params_n": ("n of a request", (1, 2, 5, 10, 20)),
}
REQUEST_HISTOGRAMS = {  # the same, and between them the field of FinishedRequestStats
    "request_prompt_tokens": ("prompt tokens of a request", "num_prompt_tokens", LENGTHS),
    "request_generation_tokens": ("tokens of an answer", "num_generation_tokens", LENGTHS),
    "request_params_max_tokens": ("max_tokens of a request", "max_tokens_param", LENGTHS),
    "request_prefill_kv_computed_tokens": ("prompt tokens that the prefix cache did not hold", "num_computed_tokens", LENGTHS),
    "request_num_preemptions": ("how often a request was preempted", "num_preemptions", (0, 1, 2, 5, 10)),
    "e2e_request_latency_seconds": ("from a request's arrival to its end", "e2e_latency", SECONDS),
    "request_queue_time_seconds": ("from the engine core's queue to the first step", "queued_time", SECONDS),
    "request_prefill_time_seconds": ("from the first step to the first token", "prefill_time", SECONDS),
    "request_inference_time_seconds": ("from the first step to the last token", "inference_time", SECONDS),
    "request_decode_time_seconds": ("from the first token to the last", "decode_time", SECONDS),
    "request_time_per_output_token_seconds": ("mean time between two tokens", "mean_time_per_output_token", TOKEN_SECONDS),
}


class PrometheusStatLogger(AggregateStatLoggerBase):
    """Labels: model_name, engine (the engine core's index) and, where several front ends share the engine cores, client_index:
    each counts its own requests, and all know how busy the engine cores are. Every series stands from the start, at zero."""

    def __init__(self, vllm_config: VllmConfig, engine_indexes: list[int]) -> None:
        model = vllm_config.model_config
        self.vllm_config = vllm_config
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model.served_model_name or model.model}
        if vllm_config.parallel_config.api_process_count > 1:
            self._labels["client_index"] = str(vllm_config.parallel_config.api_process_rank)
        self._series: dict[int, dict[Any, Any]] = {index: {} for index in engine_indexes}  # by metric, or metric and label
        for name, text in GAUGES.items():
            self._add(Gauge, name, text)
        for name, text in COUNTERS.items():
            self._add(Counter, name, text)
        for name, (kind, text, label, values) in BY_LABEL.items():
            self._add(kind, name, text, label, values)
        of_requests = {name: (text, buckets) for name, (text, _, buckets) in REQUEST_HISTOGRAMS.items()}
        for name, (text, buckets) in {**BAG_HISTOGRAMS, **of_requests}.items():
            self._add(BagHistogram, name, text, buckets=buckets or buckets_1_2_5(model.max_model_len or 1))
        self._rejections = Counter(
            "vllm:admission_rejections", "requests turned away", (*self._labels, "reason"), registry=self.registry
        )
        self.record_sleep_state(0, 0)

    def _add(self, kind: Any, name: str, text: str, label: str = "", values: Sequence[str] = (), **options: Any) -> None:
        labels = (*self._labels, "engine", label) if label else (*self._labels, "engine")
        metric = kind(f"vllm:{name}", text, labels, registry=self.registry, **options)
        for index, mine in self._series.items():
            known = (*self._labels.values(), str(index))
            if label:
                mine.update({(name, value): metric.labels(*known, value) for value in values})
            else:
                mine[name] = metric.labels(*known)

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: None = None,
        engine_idx: int = 0,
    ) -> None:
        """Count one bag."""
        mine = self._series[engine_idx]
        if scheduler_stats is not None:
            _record_state(scheduler_stats, mine)
        if iteration_stats is not None:
            _record_iteration(iteration_stats, mine)

    def log_engine_initialized(self) -> None:
        """The KV cache's size and settings, as labels of a gauge that is 1."""
        cache = vars(self.vllm_config.cache_config)
        labels = {name: str(value) for name, value in cache.items()} | self._labels
        gauge = Gauge("vllm:cache_config_info", "the KV cache", ("engine", *labels), registry=self.registry)
        for index in self._series:
            gauge.labels(engine=str(index), **labels).set(1)

    def record_sleep_state(self, is_sleeping: int, level: int) -> None:
        """One of the states is 1: awake, or what `level` did."""
        now = SLEEP_STATES[level if is_sleeping else 0]
        for mine in self._series.values():
            for state in SLEEP_STATES:
                mine["engine_sleep_state", state].set(state == now)

    def record_admission_rejection(self, reason: str) -> None:
        """Count a request that was turned away."""
        self._rejections.labels(*self._labels.values(), reason).inc()


def _record_state(stats: SchedulerStats, mine: dict[Any, Any]) -> None:
    mine["num_requests_running"].set(stats.num_running_reqs)
    mine["num_requests_waiting"].set(stats.num_waiting_reqs)
    mine["kv_cache_usage_perc"].set(stats.kv_cache_usage)
    mine["num_requests_waiting_by_reason", "capacity"].set(stats.num_waiting_reqs - stats.num_skipped_waiting_reqs)
    mine["num_requests_waiting_by_reason", "deferred"].set(stats.num_skipped_waiting_reqs)
    if stats.prefix_cache_stats is not None:
        mine["prefix_cache_queries"].inc(stats.prefix_cache_stats.queries)
        mine["prefix_cache_hits"].inc(stats.prefix_cache_stats.hits)


def _record_iteration(stats: IterationStats, mine: dict[Any, Any]) -> None:
    mine["num_preemptions"].inc(stats.num_preempted_reqs)
    mine["prompt_tokens"].inc(stats.num_prompt_tokens)
    mine["prompt_tokens_cached"].inc(stats.num_cached_prompt_tokens)
    mine["prompt_tokens_by_source", "local_compute"].inc(stats.num_prompt_tokens - stats.num_cached_prompt_tokens)
    mine["prompt_tokens_by_source", "local_cache_hit"].inc(stats.num_cached_prompt_tokens)
    mine["generation_tokens"].inc(stats.num_generation_tokens)
    mine["iteration_tokens_total"].observe(stats.num_prompt_tokens + stats.num_generation_tokens)
    mine["time_to_first_token_seconds"].observe_all(stats.time_to_first_tokens_iter)
    mine["inter_token_latency_seconds"].observe_all(stats.inter_token_latencies_iter)
    mine["request_max_num_generation_tokens"].observe_all(stats.max_num_generation_tokens_iter)
    mine["request_params_n"].observe_all(stats.n_params_iter)
    for request in stats.finished_requests:
        mine["request_success", str(request.finish_reason)].inc()
        for name, (_, field, _) in REQUEST_HISTOGRAMS.items():
            value = getattr(request, field)
            if value is not None:
                mine[name].observe(value)


class BagHistogram(Histogram):
    """Told of many values at once: there is one time between tokens for each token, and in one bag most of them are equal."""

    def observe_all(self, values: Sequence[float]) -> None:
        """Count these values; equal ones cost one look-up together."""
        if not values:
            return
        counts = [0] * len(self._buckets)
        total = 0.0
        for value, count in collections.Counter(values).items():
            counts[bisect_left(self._upper_bounds, value)] += count
            total += value * count
        for bucket, count in zip(self._buckets, counts, strict=True):
            if count:
                bucket.inc(count)
        self._sum.inc(total)


def buckets_1_2_5(most: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... as far as `most`."""
    decades = [10**power for power in range(len(str(most)))]
    return [digit * decade for decade in decades for digit in (1, 2, 5) if digit * decade <= most]
