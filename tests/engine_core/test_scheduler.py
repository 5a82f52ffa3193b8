"""The scheduler's rules, one by one. That no schedule changes a token is in test_scheduler_properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.engine_core.harness import Bench, make_config, make_request
from vllm_lite.engine_core.executor.toy import expected_tokens
from vllm_lite.engine_core.request import RequestStatus
from vllm_lite.engine_core.scheduler import check_stop
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.messages import EngineCoreEventType, FinishReason
from vllm_lite.wire.stats import PrefillStats, PrefixCacheStats
from vllm_lite.wire.step import LogprobsLists, ModelRunnerOutput

EIGHT = list(range(100, 108))
LONG = SamplingParams(max_tokens=50)


def bench(**config: Any) -> Bench:
    return Bench(make_config(**config))


def running(bench: Bench) -> list[str]:
    return [request.request_id for request in bench.scheduler.running]


def waiting(bench: Bench) -> list[str]:
    return [request.request_id for request in bench.scheduler.waiting]


def events(bench: Bench, request_id: str) -> list[str]:
    rows = bench.answers[request_id].rows
    return [event.type.name for row in rows for event in row.events or ()]


# ---- budget, slots, chunks ---------------------------------------------------------------------------------------------------


def test_running_requests_come_first_and_the_rest_of_the_budget_admits() -> None:
    b = bench(max_num_batched_tokens=10, max_num_seqs=4, caching=False)
    b.add("a", EIGHT)
    b.add("b", EIGHT)
    assert b.step() == {"a": 8, "b": 2}
    b.add("c", EIGHT)
    assert b.step() == {"a": 1, "b": 6, "c": 3}


def test_a_chunk_that_does_not_end_its_prompt_yields_no_row() -> None:
    b = bench(max_num_batched_tokens=3, max_num_seqs=1)
    b.add("a", EIGHT)
    assert [b.step()["a"] for _ in range(2)] == [3, 3]
    assert b.answers["a"].rows == []
    assert b.step() == {"a": 2}
    assert b.answers["a"].token_ids == b.expected("a", 1)


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_holds_it() -> None:
    b = bench(max_model_len=12, max_num_batched_tokens=12, max_num_seqs=4, enable_chunked_prefill=False, caching=False)
    b.add("a", EIGHT, SamplingParams(max_tokens=1))
    b.add("b", list(range(5)), SamplingParams(max_tokens=1))
    assert b.step() == {"a": 8}
    assert b.step() == {"b": 5}


def test_max_num_seqs_bounds_the_running_requests() -> None:
    b = bench(max_num_seqs=2)
    for name in "abc":
        b.add(name, EIGHT, SamplingParams(max_tokens=2))
    b.step()
    assert (running(b), waiting(b)) == (["a", "b"], ["c"])
    b.step()
    b.step()
    assert running(b) == ["c"]


def test_the_long_prefill_threshold_holds_only_while_somebody_else_is_there() -> None:
    b = bench(long_prefill_token_threshold=3, caching=False)
    b.add("a", EIGHT)
    assert b.step() == {"a": 8}
    b.add("b", EIGHT)
    assert b.step() == {"a": 1, "b": 3}


def test_a_prompt_is_admitted_only_where_all_of_it_fits_unless_told_otherwise() -> None:
    for reserve, admitted in [(True, ["a"]), (False, ["a", "b"])]:
        b = bench(num_blocks=6, max_num_batched_tokens=12, max_num_seqs=4, caching=False, scheduler_reserve_full_isl=reserve)
        b.add("a", EIGHT, LONG)
        b.add("b", list(range(14)), LONG)
        b.step()
        assert running(b) == admitted


def test_a_head_that_does_not_fit_blocks_those_behind_it() -> None:
    b = bench(num_blocks=6, caching=False)
    b.add("a", EIGHT, LONG)
    b.add("big", list(range(16)), LONG)
    b.add("small", [1], LONG)
    b.step()
    assert (running(b), waiting(b)) == (["a"], ["big", "small"])


@pytest.mark.parametrize("length", [15, 16])
def test_a_prompt_of_exactly_the_pool_is_served(length: int) -> None:
    b = bench(num_blocks=5, max_model_len=17)
    b.add("a", list(range(length)), LONG)
    b.run(10)
    assert len(b.answers["a"].token_ids) == 17 - length
    assert b.answers["a"].finish_reason == FinishReason.LENGTH


# ---- the prefix cache --------------------------------------------------------------------------------------------------------


def test_case_21_requests_of_one_step_share_blocks_that_are_only_now_computed() -> None:
    b = bench()
    b.add("a", [*EIGHT, 1])
    b.add("b", [*EIGHT, 1])
    plan = b.scheduler.schedule()
    assert plan.num_scheduled_tokens == {"a": 9, "b": 1}
    assert [new.block_ids for new in plan.scheduled_new_reqs] == [[[1, 2, 3]], [[1, 2, 4]]]
    b.update(plan, b.execute(plan))
    b.run()
    assert b.answers["a"].token_ids == b.answers["b"].token_ids == b.expected("a", 4)


def test_case_21_a_fully_cached_prompt_computes_its_last_block_again() -> None:
    b = bench()
    b.add("a", EIGHT)
    b.run()
    b.add("b", EIGHT)
    assert b.step() == {"b": 4}
    assert b.answers["b"].rows[0].prefill_stats == PrefillStats(8, 4)


def test_statistics_of_the_prefix_cache_are_of_admitted_requests_and_reported_once() -> None:
    b = bench(max_num_seqs=1)
    b.add("a", [*EIGHT, 1], SamplingParams(max_tokens=1))
    b.add("b", [*EIGHT, 1], SamplingParams(max_tokens=2))
    stats = []
    for _ in range(4):
        plan = b.scheduler.schedule()
        for bag in b.scheduler.update_from_output(plan, b.execute(plan)).values():
            assert bag.scheduler_stats is not None
            stats.append(bag.scheduler_stats.prefix_cache_stats)
    assert stats == [PrefixCacheStats(1, 9, 0), PrefixCacheStats(1, 9, 8), None, None]


def test_reset_prefix_cache_waits_for_running_requests_or_preempts_them() -> None:
    b = bench()
    b.add("a", EIGHT, SamplingParams(max_tokens=6))
    b.add("b", [1, 2, 3], SamplingParams(max_tokens=6))
    b.step()
    assert not b.scheduler.reset_prefix_cache()
    assert b.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert (running(b), waiting(b)) == ([], ["a", "b"])
    plan = b.scheduler.schedule()
    assert plan.preempted_req_ids == ["b", "a"]
    assert plan.num_scheduled_tokens == {"a": 9, "b": 4}
    b.update(plan, b.execute(plan))
    b.run()
    assert b.answers["a"].token_ids == b.expected("a", 6)
    assert b.answers["b"].token_ids == b.expected("b", 6)


# ---- preemption --------------------------------------------------------------------------------------------------------------


def test_case_22_the_newest_running_request_goes_and_resumes_in_front_with_what_is_still_cached() -> None:
    b = bench(num_blocks=7)  # six usable blocks
    b.add("a", list(range(11)), SamplingParams(max_tokens=10))
    b.add("b", list(range(50, 61)), SamplingParams(max_tokens=4))
    b.step()
    b.add("c", [1], LONG)
    b.step()
    assert (running(b), waiting(b)) == (["a", "b"], ["c"])
    plan = b.scheduler.schedule()  # a wants its fourth block, b too, and none is free
    assert plan.num_scheduled_tokens == {"a": 1}
    assert plan.preempted_req_ids == ["b"]
    assert (running(b), waiting(b)) == (["a"], ["b", "c"])  # nobody is admitted in this step
    b.update(plan, b.execute(plan))
    b.scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    plan = b.scheduler.schedule()
    assert plan.num_scheduled_tokens["b"] == 5  # 13 tokens, of which two blocks were still cached
    resumed = plan.scheduled_new_reqs[0]
    assert (resumed.req_id, resumed.num_prompt_tokens, resumed.num_computed_tokens) == ("b", 11, 8)
    assert resumed.prefill_token_ids == list(range(50, 61)) + b.expected("b", 2)
    b.update(plan, b.execute(plan))
    b.run()
    assert b.answers["b"].token_ids == b.expected("b", 4)
    assert events(b, "b") == ["QUEUED", "SCHEDULED", "PREEMPTED", "SCHEDULED"]
    assert b.answers["b"].rows[0].prefill_stats == PrefillStats(11, 0)
    assert [row.prefill_stats for row in b.answers["b"].rows[1:]] == [None] * 3


def test_the_last_running_request_preempts_itself_and_the_others_go_on() -> None:
    b = bench(num_blocks=6, caching=False)  # five usable blocks
    b.add("a", [1, 2, 3, 4, 5], LONG)
    b.add("b", list(range(11)), LONG)
    b.step()
    assert [b.step() for _ in range(2)] == [{"a": 1, "b": 1}, {"a": 1}]
    assert waiting(b) == ["b"]


def test_by_priority_the_least_urgent_goes_even_if_this_step_had_served_it_already() -> None:
    b = bench(
        num_blocks=11, block_size=2, policy="priority", max_num_batched_tokens=8, max_num_seqs=8, long_prefill_token_threshold=4
    )
    b.add("meek", list(range(15)), SamplingParams(max_tokens=4), priority=5)
    assert b.step() == {"meek": 8}
    b.add("urgent", [70, 71], SamplingParams(max_tokens=5), arrival_time=1.0)
    b.add("third", [80], SamplingParams(max_tokens=5), arrival_time=2.0)
    assert b.step() == {"meek": 4, "third": 1, "urgent": 2}
    b.add("tiny", [90], SamplingParams(max_tokens=5), priority=-1)
    plan = b.scheduler.schedule()  # meek got the last two blocks for its last three tokens; then urgent wants one
    assert plan.num_scheduled_tokens == {"urgent": 1, "third": 1}  # and tiny, for whom there is room now, comes a step later
    assert plan.total_num_scheduled_tokens == 2
    assert plan.scheduled_cached_reqs.req_ids == ["urgent", "third"]
    assert plan.preempted_req_ids == ["meek"]
    pool, meek = b.scheduler.kv_cache_manager.block_pool, b.requests["meek"]
    assert pool.get_cached_block(meek.block_hashes[5]) is not None
    assert pool.get_cached_block(meek.block_hashes[6]) is None  # it will not be filled, so nobody may find it
    b.update(plan, b.execute(plan))
    b.check_blocks()
    b.run()
    for request_id, count in (("meek", 4), ("urgent", 5), ("third", 5), ("tiny", 5)):
        assert b.answers[request_id].token_ids == b.expected(request_id, count)


def test_by_priority_a_request_that_preempts_itself_costs_nobody_else_the_step() -> None:
    b = bench(num_blocks=6, policy="priority")
    b.add("meek", list(range(7)), SamplingParams(max_tokens=12), priority=5)
    b.step()
    b.add("urgent", list(range(20, 30)), SamplingParams(max_tokens=5), priority=0)
    assert [b.step() for _ in range(2)] == [{"meek": 1, "urgent": 10}, {"urgent": 1}]
    assert waiting(b) == ["meek"]


def test_by_priority_a_preempted_request_keeps_its_place_before_newcomers() -> None:
    b = bench(num_blocks=6, policy="priority", caching=False)
    b.add("old", list(range(11)), LONG, arrival_time=1.0, priority=1)
    b.add("urgent", [1, 2, 3, 4, 5, 6, 7], LONG, arrival_time=2.0)
    b.step()
    b.add("new", [1], LONG, arrival_time=3.0, priority=1)
    while waiting(b) == ["new"]:
        b.step()
    assert waiting(b) == ["old", "new"]


# ---- ends --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "last", "status", "stop_reason"),
    [
        ({}, 5, None, None),
        ({"eos_token_id": 5}, 5, RequestStatus.FINISHED_STOPPED, None),
        ({"eos_token_id": 5, "ignore_eos": True}, 5, None, None),
        ({"stop_token_ids": [4, 5]}, 5, RequestStatus.FINISHED_STOPPED, 5),
        ({"stop_token_ids": [4, 6]}, 5, None, None),
        ({"eos_token_id": 5, "stop_token_ids": [5]}, 5, RequestStatus.FINISHED_STOPPED, None),
        ({"eos_token_id": 5, "max_tokens": 1}, 5, RequestStatus.FINISHED_STOPPED, None),
        ({"stop_token_ids": [5], "max_tokens": 1}, 5, RequestStatus.FINISHED_STOPPED, 5),
        ({"max_tokens": 1}, 5, RequestStatus.FINISHED_LENGTH_CAPPED, None),
        ({"eos_token_id": 5, "ignore_eos": True, "max_tokens": 1}, 5, RequestStatus.FINISHED_LENGTH_CAPPED, None),
        ({"stop_token_ids": [0]}, 0, RequestStatus.FINISHED_STOPPED, 0),
        ({"eos_token_id": 5, "min_tokens": 3}, 5, RequestStatus.FINISHED_STOPPED, None),  # the sampler masks, not this
    ],
)
def test_stop_checks_in_order(fields: dict[str, Any], last: int, status: RequestStatus | None, stop_reason: int | None) -> None:
    request = make_request("r", [1, 2], SamplingParams(**{"max_tokens": 9, **fields}))
    request.append_output_token_ids(last)
    check_stop(request, 100)
    assert request.status == (status or RequestStatus.WAITING)
    assert request.stop_reason == stop_reason


def test_the_models_length_ends_an_answer() -> None:
    request = make_request("r", [1, 2], SamplingParams(max_tokens=None))
    request.append_output_token_ids(3)
    check_stop(request, 4)
    assert not request.is_finished()
    request.append_output_token_ids(3)
    check_stop(request, 4)
    assert request.status == RequestStatus.FINISHED_LENGTH_CAPPED


def test_tokens_after_the_one_that_stops_are_dropped() -> None:
    b = bench()
    b.add("a", [1], SamplingParams(max_tokens=10, stop_token_ids=[7]))
    plan = b.scheduler.schedule()
    b.update(plan, ModelRunnerOutput(["a"], [[5, 7, 9]]))
    assert b.answers["a"].token_ids == [5, 7]
    assert b.answers["a"].finish_reason == FinishReason.STOP
    assert b.answers["a"].rows[0].stop_reason == 7
    assert b.requests["a"].all_token_ids[-2:] == [5, 7]


def test_case_23_the_worker_hears_of_the_last_end_by_an_empty_step() -> None:
    b = bench()
    b.add("a", EIGHT, SamplingParams(max_tokens=1))
    b.step()
    assert b.scheduler.get_num_unfinished_requests() == 0
    assert b.scheduler.has_requests()
    plan = b.scheduler.schedule()
    assert (plan.finished_req_ids, plan.num_scheduled_tokens, plan.total_num_scheduled_tokens) == (["a"], {}, 0)
    assert not b.scheduler.has_requests()
    b.update(plan, b.execute(plan))
    b.check_empty()


def test_finish_requests_reports_each_request_once_and_ignores_the_unknown() -> None:
    b = bench(max_num_seqs=1)
    b.add("run", EIGHT, LONG)
    b.add("wait", EIGHT, LONG)
    b.step()
    finished = b.scheduler.finish_requests(["wait", "run", "wait", "unknown"], RequestStatus.FINISHED_ABORTED)
    assert [request.request_id for request in finished] == ["wait", "run"]
    assert {request.status for request in finished} == {RequestStatus.FINISHED_ABORTED}
    assert b.scheduler.finish_requests(["run"], RequestStatus.FINISHED_ABORTED) == []
    b.run()
    b.check_empty()


def test_all_requests_can_be_finished_at_once() -> None:
    b = bench(max_num_seqs=1)
    for name in "abc":
        b.add(name, EIGHT, LONG)
    b.step()
    assert len(b.scheduler.finish_requests(list(b.requests), RequestStatus.FINISHED_ABORTED)) == 3
    b.run()
    b.check_empty()


def test_an_abort_during_the_last_step_is_the_end_and_no_row_follows() -> None:
    b = bench()
    b.add("a", EIGHT, SamplingParams(max_tokens=1))
    plan = b.scheduler.schedule()
    result = b.execute(plan)
    assert b.scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED) == [b.requests["a"]]
    b.update(plan, result)
    assert b.requests["a"].status == RequestStatus.FINISHED_ABORTED
    assert b.answers["a"].rows == []


def test_case_14_a_live_id_is_not_taken_twice() -> None:
    b = bench()
    b.add("a", EIGHT)
    with pytest.raises(ValueError, match="a is here already"):
        b.scheduler.add_request(make_request("a", [1]))
    b.run()
    b.add("a", EIGHT)


# ---- bags --------------------------------------------------------------------------------------------------------------------


def test_each_client_gets_its_own_bag_and_one_of_them_the_statistics() -> None:
    b = bench()
    b.add("a", EIGHT, client_index=2)
    b.add("b", EIGHT, client_index=1)
    b.add("c", EIGHT, client_index=2)
    plan = b.scheduler.schedule()
    bags = b.scheduler.update_from_output(plan, b.execute(plan))
    assert {client: [row.request_id for row in bag.outputs] for client, bag in bags.items()} == {2: ["a", "c"], 1: ["b"]}
    assert bags[1].scheduler_stats is None
    stats = bags[2].scheduler_stats
    assert stats is not None
    assert (stats.num_running_reqs, stats.num_waiting_reqs, stats.step_counter) == (3, 0, 0)
    assert stats.kv_cache_usage == pytest.approx(4 / 99)


def test_who_has_ended_is_said_where_requests_are_balanced_over_engines() -> None:
    config = make_config()
    config.parallel_config.data_parallel_size = 2
    b = Bench(config)
    b.add("a", EIGHT, SamplingParams(max_tokens=1))
    b.add("b", EIGHT, LONG, client_index=3)
    plan = b.scheduler.schedule()
    b.scheduler.finish_requests(["b"], RequestStatus.FINISHED_ABORTED)
    bags = b.scheduler.update_from_output(plan, b.execute(plan))
    assert {client: bag.finished_requests for client, bag in bags.items()} == {0: {"a"}, 3: {"b"}}
    plan = b.scheduler.schedule()
    assert b.scheduler.update_from_output(plan, b.execute(plan))[0].finished_requests is None


def test_a_step_without_rows_still_reports_to_client_0() -> None:
    b = bench(max_num_batched_tokens=3, max_num_seqs=1)
    b.add("a", EIGHT, client_index=1)
    plan = b.scheduler.schedule()
    bags = b.scheduler.update_from_output(plan, b.execute(plan))
    assert list(bags) == [0]
    assert bags[0].outputs == []
    assert bags[0].scheduler_stats is not None


def test_preemptions_are_counted_in_the_step_they_happen() -> None:
    b = bench(num_blocks=5, caching=False)
    b.add("a", [1, 2, 3, 4], LONG)
    b.add("b", [1, 2, 3, 4, 5, 6, 7, 8], LONG)
    counts = []
    for _ in range(3):
        plan = b.scheduler.schedule()
        bags = b.scheduler.update_from_output(plan, b.execute(plan))
        counts += [bag.scheduler_stats.num_preempted_reqs for bag in bags.values() if bag.scheduler_stats]
    assert counts == [0, 1, 0]


def test_milestones_and_prefill_statistics_ride_with_the_first_row_only() -> None:
    b = bench()
    b.add("a", EIGHT)
    b.run()
    first, *rest = b.answers["a"].rows
    assert first.events is not None
    assert [event.type for event in first.events] == [EngineCoreEventType.QUEUED, EngineCoreEventType.SCHEDULED]
    assert first.prefill_stats == PrefillStats(8, 0)
    assert all(row.events is None and row.prefill_stats is None for row in rest)


def test_logprobs_ride_with_their_tokens() -> None:
    b = bench()
    b.add("a", EIGHT, SamplingParams(max_tokens=2, logprobs=1))
    b.add("b", EIGHT, SamplingParams(max_tokens=2))
    b.run()
    for row in b.answers["a"].rows:
        assert row.new_logprobs is not None
        assert row.new_logprobs.logprob_token_ids[0, 0] == row.new_token_ids[0]
    assert all(row.new_logprobs is None for row in b.answers["b"].rows)


def test_prompt_logprobs_of_chunks_come_with_the_first_row() -> None:
    b = bench(max_num_batched_tokens=5, max_num_seqs=1)
    b.add("a", EIGHT, SamplingParams(max_tokens=2, prompt_logprobs=0))
    for start, stop in ((0, 5), (5, 8)):
        plan = b.scheduler.schedule()
        result = b.execute(plan)
        ids = np.arange(start, stop, dtype=np.int32)
        result.prompt_logprobs = {"a": LogprobsLists(ids[:, None], ids[:, None].astype(np.float32), ids), "gone": None}  # type: ignore[dict-item]
        b.update(plan, result)
    b.run()
    first, second = b.answers["a"].rows
    assert first.new_prompt_logprobs_tensors is not None
    assert first.new_prompt_logprobs_tensors.logprob_token_ids[:, 0].tolist() == list(range(8))
    assert second.new_prompt_logprobs_tensors is None


def test_a_pooled_prompt_ends_with_its_vector() -> None:
    b = bench(max_num_batched_tokens=5, max_num_seqs=5)
    b.add("p", EIGHT, pooling=PoolingParams())
    b.add("a", [1], SamplingParams(max_tokens=1))
    b.run()
    (row,) = b.answers["p"].rows
    assert (row.new_token_ids, row.finish_reason) == ([], FinishReason.STOP)
    assert row.pooling_output.dtype == np.float32
    b.check_empty()


def test_a_request_that_fails_in_the_worker_ends_alone_and_leaves_nothing_to_be_shared() -> None:
    b = Bench(make_config(), toy_error_token=7)
    b.add("bad", [*EIGHT, 7])
    b.add("good", [1, 2, 3])
    b.run()
    (row,) = b.answers["bad"].rows
    assert (row.new_token_ids, row.finish_reason) == ([], FinishReason.ERROR)
    assert row.error == "the toy was told to fail on token 7"
    assert b.answers["good"].token_ids == expected_tokens([1, 2, 3], 4)
    b.add("later", [*EIGHT, 8])
    assert b.step() == {"later": 9}


def test_what_an_executor_says_of_a_failure_can_be_sent() -> None:
    b = Bench(make_config(), toy_error_token=7)
    for error, told in (("\ud800!", "\\ud800!"), (KeyError("k"), "'k'")):
        b.add(told, [7])
        plan = b.scheduler.schedule()
        result = b.execute(plan)
        result.errors[told] = error
        b.update(plan, result)
        assert b.answers[told].rows[0].error == told
