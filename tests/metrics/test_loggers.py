"""Stat loggers: each told once, names as vLLM's, one bad logger harms nobody."""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from vllm_lite import AsyncEngineArgs, VllmConfig
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.metrics import loggers
from vllm_lite.metrics.loggers import (
    AggregateStatLoggerBase,
    LoggingStatLogger,
    PrometheusStatLogger,
    StatLoggerBase,
    StatLoggerManager,
    load_stat_logger_plugin_factories,
)
from vllm_lite.metrics.loggers.prometheus import BagHistogram, buckets_1_2_5
from vllm_lite.metrics.stats import IterationStats, RequestStateStats
from vllm_lite.wire.messages import FinishReason
from vllm_lite.wire.stats import PrefixCacheStats, SchedulerStats

VLLM_NAMES = [
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "kv_cache_usage_perc",
    "engine_sleep_state",
    "cache_config_info",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_preemptions",
    "prompt_tokens",
    "prompt_tokens_by_source",
    "prompt_tokens_cached",
    "generation_tokens",
    "request_success",
    "admission_rejections",
    "request_prompt_tokens",
    "request_generation_tokens",
    "iteration_tokens_total",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_num_preemptions",
    "request_prefill_kv_computed_tokens",
]


class Recorder(StatLoggerBase):
    """Notes what it is told."""

    made: list[Recorder] = []

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self.engine_index = engine_index
        self.calls: list[Any] = []
        Recorder.made.append(self)

    def record(self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: None = None, engine_idx: int = 0) -> None:
        self.calls.append((scheduler_stats, iteration_stats, engine_idx))

    def log_engine_initialized(self) -> None:
        self.calls.append("initialized")


class Everything(AggregateStatLoggerBase):
    """Fails at each bag."""

    def __init__(self, vllm_config: VllmConfig, engine_indexes: list[int]) -> None:
        self.engine_indexes = engine_indexes

    def record(self, *args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError

    def log_engine_initialized(self) -> None: ...


@pytest.fixture
def config(tiny_model_path: Path) -> VllmConfig:
    return AsyncEngineArgs(model=str(tiny_model_path), served_model_name="m", max_model_len=64).create_engine_config()


def finished(iteration: IterationStats, reason: FinishReason = FinishReason.LENGTH) -> IterationStats:
    stats = RequestStateStats(1.0, 3, 0, 1.0, 2.0, 3.0, 7.0)
    iteration.update_from_finished_request(reason, "r", stats, num_prompt_tokens=5, max_tokens_param=3, num_cached_tokens=2)
    return iteration


def sample(logger: PrometheusStatLogger, name: str, **labels: str) -> float | None:
    return logger.registry.get_sample_value(f"vllm:{name}", {"model_name": "m", "engine": "0", **labels})


def test_names_are_vllms(config: VllmConfig) -> None:
    logger = PrometheusStatLogger(config, [0, 1])
    logger.log_engine_initialized()
    assert sorted(metric.name.removeprefix("vllm:") for metric in logger.registry.collect()) == sorted(VLLM_NAMES)
    assert b'vllm:request_success_total{engine="1",finished_reason="stop",model_name="m"} 0.0' in generate_latest(
        logger.registry
    )


def test_prometheus_counts(config: VllmConfig) -> None:
    logger = PrometheusStatLogger(config, [0, 1])
    logger.record(SchedulerStats(3, 2, 0.5, PrefixCacheStats(1, 10, 4), num_skipped_waiting_reqs=1), None)
    iteration = finished(IterationStats(11.0, 7, 5, 2, 1))
    iteration.inter_token_latencies_iter = [0.02, 0.5]
    logger.record(None, iteration)
    assert sample(logger, "num_requests_running") == 3
    assert sample(logger, "num_requests_waiting_by_reason", reason="capacity") == 1
    assert sample(logger, "kv_cache_usage_perc") == 0.5
    assert (sample(logger, "prefix_cache_queries_total"), sample(logger, "prefix_cache_hits_total")) == (10, 4)
    assert (sample(logger, "generation_tokens_total"), sample(logger, "prompt_tokens_total")) == (7, 5)
    assert sample(logger, "prompt_tokens_by_source_total", source="local_compute") == 3
    assert sample(logger, "num_preemptions_total") == 1
    assert sample(logger, "request_success_total", finished_reason="length") == 1
    assert sample(logger, "inter_token_latency_seconds_sum") == 0.52
    assert sample(logger, "e2e_request_latency_seconds_sum") == 10
    assert sample(logger, "request_decode_time_seconds_sum") == 4
    assert sample(logger, "request_time_per_output_token_seconds_sum") == 2
    assert sample(logger, "request_prefill_kv_computed_tokens_sum") == 3
    assert logger.registry.get_sample_value("vllm:generation_tokens_total", {"model_name": "m", "engine": "1"}) == 0


def test_times_that_are_not_known_are_not_observed(config: VllmConfig) -> None:
    logger, iteration = PrometheusStatLogger(config, [0]), IterationStats(11.0)
    iteration.update_from_finished_request(
        FinishReason.ABORT, "r", RequestStateStats(1.0), num_prompt_tokens=5, max_tokens_param=None
    )
    logger.record(None, iteration)
    assert sample(logger, "request_queue_time_seconds_count") == 0
    assert sample(logger, "e2e_request_latency_seconds_count") == 1


def test_sleep_and_rejections(config: VllmConfig) -> None:
    logger = PrometheusStatLogger(config, [0])
    states = ("awake", "weights_offloaded", "discard_all")
    for args, expected in (((1, 2), [0, 0, 1]), ((1, 1), [0, 1, 0]), ((0, 0), [1, 0, 0])):
        logger.record_sleep_state(*args)
        assert [sample(logger, "engine_sleep_state", sleep_state=state) for state in states] == expected
    logger.record_admission_rejection("max_num_queued_reqs")
    name, labels = "vllm:admission_rejections_total", {"model_name": "m", "reason": "max_num_queued_reqs"}
    assert logger.registry.get_sample_value(name, labels) == 1


def test_two_engines_in_one_process_do_not_mix(config: VllmConfig) -> None:
    one, two = PrometheusStatLogger(config, [0]), PrometheusStatLogger(config, [0])
    one.record(SchedulerStats(3), None)
    assert (sample(one, "num_requests_running"), sample(two, "num_requests_running")) == (3, 0)


@pytest.mark.parametrize(("most", "expected"), [(1, [1]), (64, [1, 2, 5, 10, 20, 50]), (100, [1, 2, 5, 10, 20, 50, 100])])
def test_buckets(most: int, expected: list[int]) -> None:
    assert buckets_1_2_5(most) == expected


@given(st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, 2.5, 3.0, 10.0, 64.0]))))
def test_many_values_at_once_equal_one_by_one(bags: list[list[float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    at_once = BagHistogram("a:name", "text", ("engine",), registry=ours, buckets=(0.5, 1.0, 2.5, 10.0))
    one_by_one = Histogram("a:name", "text", ("engine",), registry=theirs, buckets=(0.5, 1.0, 2.5, 10.0))
    for metric in (at_once, one_by_one):
        metric.labels("1")
    for bag in bags:
        at_once.labels("1").observe_all(bag)
        for value in bag:
            one_by_one.labels("1").observe(value)
    assert lines(ours) == lines(theirs)


def lines(registry: CollectorRegistry) -> list[bytes]:
    return [line for line in generate_latest(registry).splitlines() if b"_created" not in line]


def test_the_line(config: VllmConfig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, logger="vllm_lite")
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    logger = LoggingStatLogger(config, 3)
    logger.log()
    logger.record(SchedulerStats(2, 1, 0.25, PrefixCacheStats(1, 10, 4)), IterationStats(1.0, 30, 10, 0, 2))
    now = 102.0
    logger.log()
    logger.record(SchedulerStats(), None)
    logger.log()
    assert [record.getMessage() for record in caplog.records] == [
        "engine 3: 5.0 prompt tokens/s, 15.0 generation tokens/s, running 2 requests, waiting 1, KV cache used 25.0 %, "
        "preempted 2, prefix cache hits 40.0 %"
    ]


def test_one_line_for_all_engine_cores(config: VllmConfig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="vllm_lite")
    both = StatLoggerManager(config, (0, 1), aggregate_engine_logging=True)
    for index, usage in enumerate((0.5, 0.25)):
        both.record(SchedulerStats(2, 1, usage), None, engine_idx=index)
    both.log()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("all 2 engines: ")
    assert line.endswith("running 4 requests, waiting 2, KV cache used 37.5 %")


def test_each_logger_hears_of_its_engine_core_once(config: VllmConfig) -> None:
    Recorder.made.clear()
    both = StatLoggerManager(config, (0, 1), (Recorder,), enable_default_loggers=False)
    both.log_engine_initialized()
    stats, iteration = SchedulerStats(1), IterationStats(1.0)
    both.record(stats, iteration, engine_idx=1)
    both.log()
    both.record_sleep_state(1, 1)
    both.record_admission_rejection("max_num_queued_reqs")
    zero, one = Recorder.made
    assert (zero.engine_index, zero.calls) == (0, ["initialized"])
    assert (one.engine_index, one.calls) == (1, ["initialized", (stats, iteration, 1)])
    assert sample(both.prometheus, "engine_sleep_state", sleep_state="weights_offloaded") == 1


def test_a_logger_that_fails_is_left_out(config: VllmConfig, caplog: pytest.LogCaptureFixture) -> None:
    one = StatLoggerManager(config, (0,), (Everything,), enable_default_loggers=False)
    for _ in range(2):
        one.record(SchedulerStats(1), None)
    assert caplog.text.count("stat logger Everything failed and is left out") == 1
    assert sample(one.prometheus, "num_requests_running") == 1


@pytest.mark.parametrize(
    ("method", "args"),
    [("log", ()), ("log_engine_initialized", ()), ("record_sleep_state", (1, 1)), ("record_admission_rejection", ("full",))],
)
def test_whatever_it_fails_at(
    config: VllmConfig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, method: str, args: tuple[Any, ...]
) -> None:
    monkeypatch.setattr(Everything, method, Everything.record)
    one = StatLoggerManager(config, (0,), (Everything,), enable_default_loggers=False)
    for _ in range(2):
        getattr(one, method)(*args)
    assert caplog.text.count("stat logger Everything failed and is left out") == 1


def test_what_makes_no_logger_is_refused(config: VllmConfig) -> None:
    with pytest.raises(VLLMValidationError, match="stat_loggers must be subclasses of StatLoggerBase"):
        StatLoggerManager(config, (0,), ("log",))  # type: ignore[arg-type]


def test_a_subclass_of_prometheus_takes_its_place(config: VllmConfig) -> None:
    class Mine(PrometheusStatLogger):
        """Another name."""

    assert type(StatLoggerManager(config, (0,), (Mine,)).prometheus) is Mine


def test_h1_of_several_front_ends_each_says_which_it_is(config: VllmConfig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="vllm_lite")
    config.parallel_config.api_process_count, config.parallel_config.api_process_rank = 2, 1
    one = StatLoggerManager(config, (0,))
    one.record(SchedulerStats(1), None)
    one.record_admission_rejection("max_num_queued_reqs")
    one.log()
    assert caplog.messages[0].startswith("front end 1 of 2, engine 0: 0.0 prompt tokens/s")
    assert sample(one.prometheus, "num_requests_running", client_index="1") == 1
    assert all(
        line.labels.get("client_index") == "1" for metric in one.prometheus.registry.collect() for line in metric.samples
    )


def test_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_stat_logger_plugin_factories() == []
    found = [EntryPoint("mine", f"{__name__}:Recorder", loggers.PLUGIN_GROUP)]
    monkeypatch.setattr(loggers, "entry_points", lambda *, group: found if group == loggers.PLUGIN_GROUP else [])
    monkeypatch.setattr(EntryPoint, "load", lambda self: Recorder if self.name == "mine" else dict)
    assert load_stat_logger_plugin_factories() == [Recorder]
    found.append(EntryPoint("bad", "builtins:dict", loggers.PLUGIN_GROUP))
    with pytest.raises(VLLMValidationError, match="plugin bad must be a subclass of StatLoggerBase"):
        load_stat_logger_plugin_factories()
