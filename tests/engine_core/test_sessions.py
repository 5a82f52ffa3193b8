"""Requests whose prompt comes in parts: what the core keeps between two of them, and that it changes no token."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine_core.harness import Answer, Bench, make_config, make_request
from tests.engine_core.test_async_scheduling import Pipeline
from tests.engine_core.test_scheduler_properties import configs, random_request
from vllm_lite.engine_core.executor.toy import expected_tokens
from vllm_lite.engine_core.request import NEVER, Request, RequestStatus
from vllm_lite.engine_core.scheduler import PauseState
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.messages import EngineCoreEventType, FinishReason

PARKED = RequestStatus.WAITING_FOR_STREAMING_REQ
FIRST, SECOND = list(b"the quick brown"), list(b" fox jumps")
FIVE = SamplingParams(max_tokens=5)


def say(bench: Bench, request_id: str, prompt: list[int], params: SamplingParams = FIVE, **fields: Any) -> None:
    """Send a session's next part."""
    part = make_request(request_id, prompt, params, block_size=bench.block_size, resumable=True, continues=True, **fields)
    bench.scheduler.add_request(part)
    bench.answers[request_id] = Answer()


def parked(bench: Bench) -> Request:
    """A session whose first part is answered."""
    session = bench.add("s", FIRST, FIVE, resumable=True)
    bench.run()
    assert (session.status, session.first_step) == (PARKED, NEVER)
    return session


def test_a_session_without_a_part_holds_nothing_and_is_not_scheduled() -> None:
    bench = Bench(make_config())
    parked(bench)
    answer = bench.answers["s"]
    assert (answer.token_ids, answer.finish_reason) == (expected_tokens(FIRST, 5), FinishReason.LENGTH)
    scheduler = bench.scheduler
    assert (scheduler.has_requests(), scheduler.get_num_unfinished_requests()) == (False, 0)
    assert (scheduler.running, len(scheduler.waiting), list(scheduler.requests)) == ([], 0, ["s"])
    assert (scheduler.kv_cache_manager.req_to_blocks, scheduler.kv_cache_manager.usage) == ({}, 0)
    assert bench.toy.worker._requests == {}


def test_the_next_part_follows_all_but_the_last_token_and_finds_its_blocks() -> None:
    bench = Bench(make_config())
    session = parked(bench)
    kept = [*FIRST, *expected_tokens(FIRST, 4)]
    say(bench, "s", SECOND, SamplingParams(max_tokens=3, seed=7))
    assert (session.all_token_ids, session.num_output_tokens) == ([*kept, *SECOND], 0)
    plan = bench.scheduler.schedule()
    assert plan.finished_req_ids == []  # the worker heard that before
    assert plan.scheduled_new_reqs[0].num_computed_tokens == len(kept) // 4 * 4
    bench.update(plan, bench.execute(plan))
    bench.run()
    answer = bench.answers["s"]
    assert answer.token_ids == expected_tokens([*kept, *SECOND], 3, SamplingParams(seed=7))
    assert [event.type for event in answer.rows[0].events or ()] == [EngineCoreEventType.QUEUED, EngineCoreEventType.SCHEDULED]
    assert answer.rows[0].prefill_stats is None  # what it finds of itself is no hit
    bench.check_blocks()


@pytest.mark.parametrize("length", range(1, 9))
def test_k8_block_hashes_go_with_the_dropped_token(length: int) -> None:
    """A session's hashes are those of a plain request over the same tokens, at a block's edge too."""
    session = make_request("s", FIRST[:length], resumable=True)
    session.append_output_token_ids(50)
    session.append_output_token_ids(51)
    session.update_block_hashes()
    session.take_part(make_request("s", SECOND), 4)
    plain = make_request("p", [*FIRST[:length], 50, *SECOND])
    session.update_block_hashes()
    assert (session.all_token_ids, session.block_hashes) == (plain.all_token_ids, plain.block_hashes)


@pytest.mark.parametrize("how", ["unknown", "still answered", "too long"])
def test_a_part_that_nobody_waits_for_is_refused(how: str) -> None:
    bench = Bench(make_config(max_model_len=40))
    if how == "still answered":
        bench.add("s", FIRST, FIVE, resumable=True)
    elif how == "too long":
        parked(bench)
    before = dict(bench.scheduler.requests)
    room = 40 - 1 - len(FIRST) - 4
    with pytest.raises(ValueError, match="longer than 39 tokens" if how == "too long" else "no session s waits for a part"):
        say(bench, "s", [1] * (room + 1))
    assert bench.scheduler.requests == before
    if how == "too long":
        say(bench, "s", [1] * room)
        bench.run()
        assert len(bench.answers["s"].token_ids) == 1


def test_a_duplicate_of_a_parked_session_is_refused() -> None:
    bench = Bench(make_config())
    parked(bench)
    with pytest.raises(ValueError, match="is here already"):
        bench.scheduler.add_request(make_request("s", FIRST))


@pytest.mark.parametrize("when", ["waiting", "running", "parked"])
def test_an_abort_leaves_nothing(when: str) -> None:
    bench = Bench(make_config())
    if when == "parked":
        parked(bench)
    else:
        bench.add("s", FIRST, FIVE, resumable=True)
        if when == "running":
            bench.step()
    assert len(bench.scheduler.finish_requests(["s"], RequestStatus.FINISHED_ABORTED)) == 1
    bench.run()
    bench.check_empty()


def test_an_error_ends_the_session() -> None:
    bench = Bench(make_config(), toy_error_token=200)
    parked(bench)
    say(bench, "s", [200])
    bench.run()
    assert bench.answers["s"].finish_reason is FinishReason.ERROR
    bench.check_empty()


def test_while_paused_a_part_waits() -> None:
    bench = Bench(make_config())
    parked(bench)
    bench.scheduler.pause_state = PauseState.PAUSED_NEW
    say(bench, "s", SECOND)
    assert (bench.step(), bench.scheduler.get_num_unfinished_requests()) == ({}, 0)
    bench.scheduler.pause_state = PauseState.UNPAUSED
    bench.run()
    assert bench.answers["s"].token_ids == expected_tokens([*FIRST, *expected_tokens(FIRST, 4), *SECOND], 5)


def test_a_step_that_was_planned_before_the_answer_ended_brings_nothing() -> None:
    bench = Pipeline(num_blocks=20)
    first = expected_tokens(FIRST, 1)[0]
    session = bench.add("s", FIRST, SamplingParams(max_tokens=9, eos_token_id=first), resumable=True)
    assert [bench.dispatch().num_scheduled_tokens for _ in range(2)] == [{"s": len(FIRST)}, {"s": 1}]
    bench.land()
    assert (session.status, session.num_output_placeholders) == (PARKED, 0)
    say(bench, "s", SECOND)
    bench.dispatch()
    bench.land()  # the one planned before
    assert bench.answers["s"].rows == []
    bench.run()
    assert bench.answers["s"].token_ids == expected_tokens([*FIRST, *SECOND], 5)
    bench.scheduler.finish_requests(["s"], RequestStatus.FINISHED_ABORTED)
    bench.run()
    bench.check_empty()


@settings(max_examples=250, deadline=None)
@given(configs(), st.integers(0, 2**32), st.booleans())
def test_any_schedule_yields_the_plain_tokens_of_each_part(config: dict[str, Any], seed: int, overlap: bool) -> None:
    """Sessions and plain requests side by side, in pools too small for all, aborted now and then."""
    rng = random.Random(seed)
    bench = Pipeline(**config) if overlap else Bench(make_config(**config))
    scheduler, limit = bench.scheduler, bench.scheduler.max_model_len
    told: dict[str, list[int]] = {}  # all that a session was told and kept, up to the answer it is making
    todo = [f"{rng.choice('sp')}{i}" for i in range(rng.randint(1, 8))]

    def talk() -> None:
        for request_id in [i for i, r in scheduler.requests.items() if r.status == PARKED]:
            answer, session = bench.answers[request_id], bench.requests[request_id]
            expected = expected_tokens(told[request_id], len(answer.token_ids), session.sampling_params)
            assert answer.token_ids == expected
            assert answer.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
            room = limit - 1 - len(told[request_id]) - len(expected) + 1
            if room < 1 or rng.random() < 0.3:
                scheduler.finish_requests([request_id], RequestStatus.FINISHED_ABORTED)
            elif rng.random() < 0.7:
                part, params, fields = random_request(rng, room + 1)
                del fields["cache_salt"]
                told[request_id] += [*expected[:-1], *part]
                say(bench, request_id, part, params, **fields)

    while todo or scheduler.has_requests() or scheduler.requests:
        while todo and rng.random() < 0.5:
            prompt, params, fields = random_request(rng, limit)
            request_id = todo.pop()
            told[request_id] = list(prompt)
            bench.add(request_id, prompt, params, resumable=request_id[0] == "s", **fields)
        if rng.random() < 0.02:
            assert scheduler.reset_prefix_cache(reset_running_requests=True)
        bench.step()
        if not overlap:
            bench.check_blocks()
        talk()
    bench.run()
    for request_id, answer in bench.answers.items():
        if request_id[0] == "p":
            params = bench.requests[request_id].sampling_params
            assert answer.token_ids == expected_tokens(told[request_id], len(answer.token_ids), params)
            assert answer.finish_reason is not None
    bench.check_empty()
