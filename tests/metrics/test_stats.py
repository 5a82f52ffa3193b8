"""Counts and times of rows: exact values, and no time from a timestamp that was never set."""

from __future__ import annotations

import pytest

from vllm_lite.metrics.stats import IterationStats, RequestStateStats, interval
from vllm_lite.wire.messages import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, FinishReason
from vllm_lite.wire.stats import PrefillStats

QUEUED, SCHEDULED, PREEMPTED = EngineCoreEventType


def row(
    *token_ids: int, events: list[tuple[EngineCoreEventType, float]] | None = None, cached: int | None = None
) -> EngineCoreOutput:
    return EngineCoreOutput(
        "r",
        list(token_ids),
        events=None if events is None else [EngineCoreEvent(kind, t) for kind, t in events],
        prefill_stats=None if cached is None else PrefillStats(10, cached),
    )


def test_a_life_with_a_preemption() -> None:
    stats = RequestStateStats(arrival_time=1000.0)
    first = IterationStats(1000.5)
    first.update_from_output(row(1, events=[(QUEUED, 2.0), (SCHEDULED, 2.25)], cached=4), 3.0, stats, 10)
    assert (first.num_prompt_tokens, first.num_cached_prompt_tokens, first.num_generation_tokens) == (10, 4, 1)
    assert (first.time_to_first_tokens_iter, first.inter_token_latencies_iter) == ([0.5], [])
    second = IterationStats(1001.0)
    second.update_from_output(row(2, 3, events=[(PREEMPTED, 4.0), (SCHEDULED, 6.0)]), 8.0, stats, None)
    assert (second.num_preempted_reqs, second.inter_token_latencies_iter) == (1, [5.0])  # the gap of the preemption
    assert (second.num_prompt_tokens, second.time_to_first_tokens_iter) == (0, [])
    second.update_from_finished_request(
        FinishReason.LENGTH, "ext", stats, num_prompt_tokens=10, max_tokens_param=3, num_cached_tokens=4
    )
    (done,) = second.finished_requests
    assert (done.queued_time, done.prefill_time, done.inference_time, done.decode_time) == (0.25, 0.75, 5.75, 5.0)
    assert (done.e2e_latency, done.mean_time_per_output_token, done.num_preemptions) == (1.0, 2.5, 1)
    assert (done.num_generation_tokens, done.num_prompt_tokens, done.num_cached_tokens, done.max_tokens_param) == (3, 10, 4, 3)


def test_case_25_no_time_from_a_timestamp_that_was_never_set() -> None:
    """A request that was aborted while it waited: its row has no events and no tokens."""
    stats, iteration = RequestStateStats(), IterationStats(1000.0)
    iteration.update_from_output(row(), 5000.0, stats, 10)
    iteration.update_from_finished_request(FinishReason.ABORT, "ext", stats, num_prompt_tokens=10, max_tokens_param=None)
    (done,) = iteration.finished_requests
    times = (done.e2e_latency, done.queued_time, done.prefill_time, done.inference_time, done.decode_time)
    assert times == (None,) * 5
    assert done.mean_time_per_output_token is None
    assert iteration.time_to_first_tokens_iter == iteration.inter_token_latencies_iter == []


def test_one_token_has_no_time_between() -> None:
    stats, iteration = RequestStateStats(arrival_time=1.0), IterationStats(2.0)
    iteration.update_from_output(row(1, events=[(QUEUED, 2.0), (SCHEDULED, 2.0)]), 3.0, stats, 1)
    iteration.update_from_finished_request(FinishReason.STOP, "ext", stats, num_prompt_tokens=1, max_tokens_param=1)
    assert (iteration.finished_requests[0].decode_time, iteration.finished_requests[0].mean_time_per_output_token) == (
        0.0,
        None,
    )


@pytest.mark.parametrize(("start", "end", "expected"), [(0.0, 5.0, None), (5.0, 0.0, None), (2.0, 5.0, 3.0)])
def test_intervals(start: float, end: float, expected: float | None) -> None:
    assert interval(start, end) == expected
