"""The figures as Prometheus metrics, under vLLM's names, so that dashboards made for vLLM show them.

Process: front end. Knows: prometheus_client. Does not know: HTTP; `registry` is for whoever answers /metrics.
Each logger has a registry of its own: two engines in one process do not mix their figures.
Mirrors: vllm/v1/metrics/loggers.py (PrometheusStatLogger), vllm/v1/metrics/buckets.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from vllm_lite.config import VllmConfig
from vllm_lite.metrics.loggers.base import AggregateStatLoggerBase
from vllm_lite.metrics.loggers.tally import Tally
from vllm_lite.metrics.stats import FinishedRequestStats, IterationStats
from vllm_lite.wire.messages import FINISH_REASON_STRINGS
from vllm_lite.wire.stats import SchedulerStats

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
SECONDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0)
FIRST_TOKEN_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
HISTOGRAMS = {  # without buckets: 1, 2, 5, 10, ... up to the longest request
    "request_prompt_tokens": ("prompt tokens of a request", None),
    "request_generation_tokens": ("tokens of an answer", None),
    "request_max_num_generation_tokens": ("tokens of a request's longest answer", None),
    "request_params_max_tokens": ("max_tokens of a request", None),
    "request_prefill_kv_computed_tokens": ("prompt tokens that the prefix cache did not hold", None),
    "request_params_n": ("n of a request", (1, 2, 5, 10, 20)),
    "request_num_preemptions": ("how often a request was preempted", (0, 1, 2, 5, 10)),
    "iteration_tokens_total": ("prompt and generated tokens of one bag", (1, *(2**power for power in range(3, 15)))),
    "time_to_first_token_seconds": ("from a request's arrival to its first token", FIRST_TOKEN_SECONDS),
    "request_time_per_output_token_seconds": ("a request's mean time between two tokens", TOKEN_SECONDS),
    "e2e_request_latency_seconds": ("from a request's arrival to its end", SECONDS),
    "request_queue_time_seconds": ("from the engine core's queue to the first step", SECONDS),
    "request_inference_time_seconds": ("from the first step to the last token", SECONDS),
    "request_prefill_time_seconds": ("from the first step to the first token", SECONDS),
    "request_decode_time_seconds": ("from the first token to the last", SECONDS),
}
INTER_TOKEN = "inter_token_latency_seconds"
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")  # by level


class PrometheusStatLogger(AggregateStatLoggerBase):
    """Labels: model_name, engine (the engine core's index) and, where several front ends share the engine cores, client_index:
    each counts its own requests, and all know how busy the engine cores are. Every series stands from the start, at zero."""

    def __init__(self, vllm_config: VllmConfig, engine_indexes: list[int]) -> None:
        model = vllm_config.model_config
        self.vllm_config = vllm_config
        self.engine_indexes = engine_indexes
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model.served_model_name or model.model}
        if vllm_config.parallel_config.api_process_count > 1:
            self._labels["client_index"] = str(vllm_config.parallel_config.api_process_rank)
        longest = buckets_1_2_5(model.max_model_len or 1)
        self._gauges = {name: self._by_engine(Gauge, name, text) for name, text in GAUGES.items()}
        self._counters = {name: self._by_engine(Counter, name, text) for name, text in COUNTERS.items()}
        self._histograms = {
            name: self._by_engine(Histogram, name, text, buckets=longest if buckets is None else buckets)
            for name, (text, buckets) in HISTOGRAMS.items()
        }
        text = "between two bags with tokens of one request"
        self._inter_token = Tally(
            f"vllm:{INTER_TOKEN}",
            text,
            (*self._labels, "engine"),
            [(*self._labels.values(), str(index)) for index in engine_indexes],
            registry=self.registry,
            buckets=TOKEN_SECONDS,
        )
        self._waiting_by_reason = self._labelled(
            Gauge, "num_requests_waiting_by_reason", "who waits, and why", "reason", ("capacity", "deferred")
        )
        self._prompt_tokens_by_source = self._labelled(
            Counter, "prompt_tokens_by_source", "where prompt tokens came from", "source", ("local_compute", "local_cache_hit")
        )
        self._request_success = self._labelled(
            Counter, "request_success", "ended requests by the reason", "finished_reason", FINISH_REASON_STRINGS
        )
        self._sleep_state = self._labelled(
            Gauge, "engine_sleep_state", "1 for the state the engine is in", "sleep_state", SLEEP_STATES
        )
        self._rejections = Counter(
            "vllm:admission_rejections", "requests turned away", (*self._labels, "reason"), registry=self.registry
        )
        self.record_sleep_state(0, 0)

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: None = None,
        engine_idx: int = 0,
    ) -> None:
        """Count one bag."""
        if scheduler_stats is not None:
            self._record_state(scheduler_stats, engine_idx)
        if iteration_stats is not None:
            self._record_iteration(iteration_stats, engine_idx)

    def log_engine_initialized(self) -> None:
        """The KV cache's size and settings, as labels of a gauge that is 1."""
        cache = vars(self.vllm_config.cache_config)
        labels = {name: str(value) for name, value in cache.items()} | self._labels
        gauge = Gauge("vllm:cache_config_info", "the KV cache", ("engine", *labels), registry=self.registry)
        for index in self.engine_indexes:
            gauge.labels(engine=str(index), **labels).set(1)

    def record_sleep_state(self, is_sleeping: int, level: int) -> None:
        """One of the states is 1: awake, or what `level` did."""
        now = SLEEP_STATES[level if is_sleeping else 0]
        for index in self.engine_indexes:
            for state in SLEEP_STATES:
                self._sleep_state[index][state].set(state == now)

    def record_admission_rejection(self, reason: str) -> None:
        """Count a request that was turned away."""
        self._rejections.labels(*self._labels.values(), reason).inc()

    def _record_state(self, stats: SchedulerStats, index: int) -> None:
        gauges, counters = self._gauges, self._counters
        gauges["num_requests_running"][index].set(stats.num_running_reqs)
        gauges["num_requests_waiting"][index].set(stats.num_waiting_reqs)
        gauges["kv_cache_usage_perc"][index].set(stats.kv_cache_usage)
        waiting = self._waiting_by_reason[index]
        waiting["capacity"].set(stats.num_waiting_reqs - stats.num_skipped_waiting_reqs)
        waiting["deferred"].set(stats.num_skipped_waiting_reqs)
        if stats.prefix_cache_stats is not None:
            counters["prefix_cache_queries"][index].inc(stats.prefix_cache_stats.queries)
            counters["prefix_cache_hits"][index].inc(stats.prefix_cache_stats.hits)

    def _record_iteration(self, stats: IterationStats, index: int) -> None:
        counters, histograms = self._counters, self._histograms
        computed = stats.num_prompt_tokens - stats.num_cached_prompt_tokens
        counters["num_preemptions"][index].inc(stats.num_preempted_reqs)
        counters["prompt_tokens"][index].inc(stats.num_prompt_tokens)
        counters["prompt_tokens_cached"][index].inc(stats.num_cached_prompt_tokens)
        counters["generation_tokens"][index].inc(stats.num_generation_tokens)
        self._prompt_tokens_by_source[index]["local_compute"].inc(computed)
        self._prompt_tokens_by_source[index]["local_cache_hit"].inc(stats.num_cached_prompt_tokens)
        histograms["iteration_tokens_total"][index].observe(stats.num_prompt_tokens + stats.num_generation_tokens)
        for name, values in (
            ("request_max_num_generation_tokens", stats.max_num_generation_tokens_iter),
            ("request_params_n", stats.n_params_iter),
            ("time_to_first_token_seconds", stats.time_to_first_tokens_iter),
        ):
            observe = histograms[name][index].observe
            for value in values:
                observe(value)
        self._inter_token.labels(*self._labels.values(), str(index)).observe_all(stats.inter_token_latencies_iter)
        for request in stats.finished_requests:
            self._record_finished(request, index)

    def _record_finished(self, request: FinishedRequestStats, index: int) -> None:
        self._request_success[index][str(request.finish_reason)].inc()
        for name, value in (
            ("request_prompt_tokens", request.num_prompt_tokens),
            ("request_generation_tokens", request.num_generation_tokens),
            ("request_params_max_tokens", request.max_tokens_param),
            ("request_prefill_kv_computed_tokens", request.num_prompt_tokens - request.num_cached_tokens),
            ("request_num_preemptions", request.num_preemptions),
            ("e2e_request_latency_seconds", request.e2e_latency),
            ("request_queue_time_seconds", request.queued_time),
            ("request_prefill_time_seconds", request.prefill_time),
            ("request_inference_time_seconds", request.inference_time),
            ("request_decode_time_seconds", request.decode_time),
            ("request_time_per_output_token_seconds", request.mean_time_per_output_token),
        ):
            if value is not None:
                self._histograms[name][index].observe(value)

    def _by_engine(self, kind: Any, name: str, text: str, **options: Any) -> dict[int, Any]:
        metric = kind(f"vllm:{name}", text, (*self._labels, "engine"), registry=self.registry, **options)
        return {index: metric.labels(*self._labels.values(), str(index)) for index in self.engine_indexes}

    def _labelled(self, kind: Any, name: str, text: str, label: str, values: tuple[str, ...]) -> dict[int, dict[str, Any]]:
        metric = kind(f"vllm:{name}", text, (*self._labels, "engine", label), registry=self.registry)
        return {
            index: {value: metric.labels(*self._labels.values(), str(index), value) for value in values}
            for index in self.engine_indexes
        }


def buckets_1_2_5(most: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... as far as `most`."""
    return list(_up_to(most))


def _up_to(most: int) -> Iterator[int]:
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power > most:
                return
            yield digit * power
        power *= 10
