"""Steps planned while the one before runs: the same tokens, whatever happens in between."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine_core.core_process import CoreProcess, add_letter, toy_config
from tests.engine_core.harness import Bench, make_config
from tests.engine_core.test_scheduler_properties import check_answers, configs, random_request
from vllm_lite.config import VllmConfig
from vllm_lite.engine_core.core import EngineCore
from vllm_lite.engine_core.executor.toy import ToyExecutor, expected_tokens
from vllm_lite.engine_core.executor.uniproc_executor import UniProcExecutor
from vllm_lite.engine_core.request import RequestStatus
from vllm_lite.engine_core.scheduler import PauseState
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.messages import EngineCoreAbort, FinishReason
from vllm_lite.wire.step import ModelRunnerOutput, SchedulerOutput

PROMPT = list(b"the quick brown fox")


class Pipeline(Bench):
    """A bench whose results are looked at one step late."""

    def __init__(self, **config: Any) -> None:
        super().__init__(make_config(**config, async_scheduling=True))
        self.in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()

    def dispatch(self) -> SchedulerOutput:
        plan = self.scheduler.schedule()
        self.in_flight.append((plan, self.execute(plan)))
        return plan

    def land(self) -> None:
        self.update(*self.in_flight.popleft())

    def step(self) -> dict[str, int]:
        plan = self.dispatch()
        if not plan.num_scheduled_tokens or len(self.in_flight) == 2:
            self.land()
        return plan.num_scheduled_tokens

    def run(self, max_steps: int = 2000) -> None:
        super().run(max_steps)
        while self.in_flight:
            self.land()


def test_case_24_a_request_is_never_scheduled_past_its_last_token() -> None:
    bench = Pipeline(num_blocks=20)
    bench.add("a", PROMPT[:5], SamplingParams(max_tokens=3))
    scheduled = [bench.dispatch().num_scheduled_tokens for _ in range(2)]
    request = bench.requests["a"]
    assert (request.num_computed_tokens, request.num_output_placeholders) == (6, 2)
    bench.land()
    assert (request.num_computed_tokens, request.num_output_placeholders) == (6, 1)
    scheduled += [bench.dispatch().num_scheduled_tokens for _ in range(2)]
    assert scheduled == [{"a": 5}, {"a": 1}, {"a": 1}, {}]
    bench.run()
    assert bench.answers["a"].token_ids == bench.expected("a", 3)
    bench.check_empty()


def test_case_24_what_a_step_makes_for_a_request_that_has_ended_is_dropped() -> None:
    bench = Pipeline(num_blocks=20)
    first = expected_tokens(PROMPT[:5], 1)[0]
    bench.add("a", PROMPT[:5], SamplingParams(max_tokens=9, eos_token_id=first))
    plans = [bench.dispatch(), bench.dispatch()]
    assert [plan.num_scheduled_tokens for plan in plans] == [{"a": 5}, {"a": 1}]  # it might not have been the last
    bench.land()
    assert bench.answers["a"].finish_reason is FinishReason.STOP
    bench.add("a", PROMPT[:6], SamplingParams(max_tokens=2))  # the name is free, and what is on its way is not its own
    bench.land()
    assert bench.answers["a"].token_ids == []
    bench.run()
    assert bench.answers["a"].token_ids == bench.expected("a", 2)
    bench.check_empty()


@pytest.mark.parametrize("last", [True, False])
def test_case_24_a_request_preempted_with_a_token_on_its_way_gets_it_once(last: bool) -> None:
    bench = Pipeline(num_blocks=20)
    bench.add("a", PROMPT[:5], SamplingParams(max_tokens=2 if last else 6))
    bench.dispatch()
    bench.dispatch()
    bench.land()
    assert bench.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert bench.requests["a"].status == RequestStatus.PREEMPTED
    assert bench.dispatch().num_scheduled_tokens == {}  # its second token is still to come
    bench.land()
    assert bench.answers["a"].token_ids == bench.expected("a", 2)
    assert bench.requests["a"].is_finished() == last
    assert len(bench.scheduler.waiting) == (not last)
    bench.run()
    assert bench.answers["a"].token_ids == bench.expected("a", 2 if last else 6)
    bench.check_empty()


def test_prompt_logprobs_of_a_chunk_that_is_computed_again_count_once() -> None:
    bench = Pipeline(num_blocks=20, max_num_batched_tokens=4, max_num_seqs=4)
    bench.add("a", PROMPT[:10], SamplingParams(max_tokens=1, prompt_logprobs=0))
    plan = bench.scheduler.schedule()
    assert bench.scheduler.reset_prefix_cache(reset_running_requests=True)
    late = ModelRunnerOutput(["a"], [[]], prompt_logprobs={"a": "late"})  # type: ignore[dict-item]
    bench.update(plan, late)
    plan = bench.scheduler.schedule()
    bench.update(SchedulerOutput(0, [], plan.scheduled_cached_reqs, {}, 0), late)
    bench.update(plan, ModelRunnerOutput(["a"], [[]], prompt_logprobs={"a": "new"}))  # type: ignore[dict-item]
    assert bench.requests["a"].prompt_logprobs == ["new"]  # type: ignore[comparison-overlap]


def test_pooling_expects_no_token() -> None:
    bench = Pipeline(num_blocks=20)
    bench.add("p", PROMPT, pooling=PoolingParams())
    bench.run()
    assert bench.answers["p"].finish_reason is FinishReason.STOP
    bench.check_empty()


def test_a_request_that_fails_takes_its_place_in_the_next_step_with_it() -> None:
    config = toy_config(toy_error_token=7)
    config.scheduler_config.async_scheduling = True
    core = EngineCore(config, ToyExecutor)
    answers = serve(core, {"bad": ([1, 7], SamplingParams(max_tokens=5)), "good": (PROMPT, SamplingParams(max_tokens=5))})
    assert answers == {"bad": ([], FinishReason.ERROR), "good": (expected_tokens(PROMPT, 5), FinishReason.LENGTH)}
    core.shutdown()


@settings(max_examples=400, deadline=None)
@given(configs(), st.integers(0, 2**32), st.booleans())
def test_any_schedule_planned_ahead_yields_the_plain_tokens(config: dict[str, Any], seed: int, with_aborts: bool) -> None:
    rng = random.Random(seed)
    bench = Pipeline(**config)
    scheduler, max_model_len = bench.scheduler, bench.scheduler.max_model_len
    todo, aborted = [f"r{i}" for i in range(rng.randint(1, 10))], set[str]()

    def abort_some() -> None:
        for request_id in list(scheduler.requests):
            if with_aborts and rng.random() < 0.04:
                gone = scheduler.finish_requests([request_id], RequestStatus.FINISHED_ABORTED)
                aborted.update(request.request_id for request in gone)

    while todo or scheduler.requests or scheduler.has_requests() or bench.in_flight:
        while todo and rng.random() < 0.5:
            prompt, params, fields = random_request(rng, max_model_len)
            bench.add(todo.pop(), prompt, params, **fields)
        if rng.random() < 0.03:
            assert scheduler.reset_prefix_cache(reset_running_requests=True)
        if rng.random() < 0.1:
            scheduler.pause_state = rng.choice(list(PauseState))
        abort_some()
        plan = bench.dispatch()
        if scheduler.pause_state != PauseState.UNPAUSED:
            assert all(scheduler.requests[new.req_id].num_preemptions for new in plan.scheduled_new_reqs)
            assert not (plan.num_scheduled_tokens and scheduler.pause_state == PauseState.PAUSED_ALL)
        assert plan.total_num_scheduled_tokens == sum(plan.num_scheduled_tokens.values()) <= config["max_num_batched_tokens"]
        assert all(count > 0 for count in plan.num_scheduled_tokens.values())
        bench.check_blocks()
        abort_some()
        while len(bench.in_flight) == 2 or (bench.in_flight and not plan.num_scheduled_tokens):
            bench.land()

    check_answers(bench, aborted)


def serve(core: EngineCore, wanted: dict[str, tuple[list[int], SamplingParams]]) -> dict[str, tuple[list[int], FinishReason]]:
    """Every request's tokens and end."""
    for request_id, (prompt, params) in wanted.items():
        core.add_request(core.preprocess_add_request(add_letter(request_id, prompt, params)))
    tokens: dict[str, list[int]] = {request_id: [] for request_id in wanted}
    answers = {}
    while core.has_work():
        for bag in core.step().values():
            for row in bag.outputs:
                assert row.request_id not in answers
                tokens[row.request_id] += row.new_token_ids
                if row.finish_reason is not None:
                    answers[row.request_id] = tokens[row.request_id], row.finish_reason
    return answers


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_two_engines_one_of_them_planning_ahead_answer_alike(seed: int) -> None:
    """The whole engine core, its steps in a thread; the pool is small, so requests are preempted."""
    rng = random.Random(seed)
    wanted = {}
    for index in range(rng.randint(1, 12)):
        prompt, params, _ = random_request(rng, 60)
        wanted[f"r{index}"] = prompt, params
    answers = []
    for ahead in (False, True):
        config = make_config(num_blocks=20, block_size=4, max_num_seqs=6, max_num_batched_tokens=24, async_scheduling=ahead)
        config.model_config.hf_config = {"vocab_size": 320}
        core = EngineCore(config, ToyExecutor)
        answers.append(serve(core, wanted))
        assert core.scheduler.kv_cache_manager.usage == 0.0
        core.shutdown()
    assert answers[0] == answers[1]
    assert answers[0].keys() == wanted.keys()


def make_core(**additional: Any) -> EngineCore:
    config = toy_config(**additional)
    config.scheduler_config.async_scheduling = True
    return EngineCore(config, ToyExecutor)


def test_the_first_step_is_not_waited_for_and_aborts_reach_what_is_in_flight() -> None:
    core = make_core()
    core.add_request(core.preprocess_add_request(add_letter("a", PROMPT, SamplingParams(max_tokens=5))))
    assert core.step() == {}
    assert len(core.batch_queue) == 1
    bags = core.step()
    assert [row.new_token_ids for row in bags[0].outputs] == [expected_tokens(PROMPT, 1)]
    core.aborts_queue.put(EngineCoreAbort(["a"]))
    bags = core.step()
    assert bags[0].outputs == []
    while core.has_work():
        assert all(not bag.outputs for bag in core.step().values())
    assert core.model_executor.worker._requests == {}  # type: ignore[attr-defined]
    core.shutdown()


def test_a_full_pause_still_empties_the_queue() -> None:
    core = make_core()
    core.add_request(core.preprocess_add_request(add_letter("a", PROMPT, SamplingParams(max_tokens=5))))
    core.step()
    core.step()
    paused = core.pause_scheduler("keep")
    assert paused is not None
    tokens = []
    while core.has_work():
        tokens += [token for bag in core.step().values() for row in bag.outputs for token in row.new_token_ids]
        core.run_idle_actions()
    assert tokens == expected_tokens(PROMPT, 2)[1:]
    assert paused.done()
    core.resume_scheduler()
    assert serve_rest(core) == expected_tokens(PROMPT, 5)[2:]
    core.shutdown()


def serve_rest(core: EngineCore) -> list[int]:
    tokens = []
    while core.has_work():
        tokens += [token for bag in core.step().values() for row in bag.outputs for token in row.new_token_ids]
    return tokens


def test_a_failing_step_raises_what_the_forward_pass_raised() -> None:
    core = make_core(toy_crash_at_step=1)
    core.add_request(core.preprocess_add_request(add_letter("a", PROMPT)))
    core.step()
    core.step()
    with pytest.raises(RuntimeError, match="told to crash at step 1"):
        serve_rest(core)
    core.shutdown()


def test_an_executor_that_runs_each_step_inside_the_call_refuses() -> None:
    config = toy_config()
    config.scheduler_config.async_scheduling = True
    with pytest.raises(VLLMValidationError, match="async_scheduling must be False or left out with UniProcExecutor"):
        EngineCore(config, UniProcExecutor)


def test_how_many_steps_may_be_in_flight_is_the_executors_own_to_say() -> None:
    class Configured(ToyExecutor):
        def __init__(self, vllm_config: VllmConfig) -> None:
            super().__init__(vllm_config)
            self.max_concurrent_batches = vllm_config.additional_config["batches"]

    config = toy_config(batches=3)
    config.scheduler_config.async_scheduling = True
    core = EngineCore(config, Configured)
    core.add_request(core.preprocess_add_request(add_letter("a", PROMPT)))
    assert [core.step() for _ in range(2)] == [{}, {}]
    assert [row.request_id for row in core.step()[0].outputs] == ["a"]
    assert core.ready().max_concurrent_batches == 3
    core.shutdown()


@pytest.mark.parametrize(
    ("backend", "asked", "batches"), [("toy", None, 1), ("toy", True, 2), ("mp", None, 2), ("mp", False, 1)]
)
def test_what_the_engine_says_of_itself(backend: str, asked: bool | None, batches: int) -> None:
    config = toy_config(worker_cls="vllm_lite.engine_core.executor.toy.ToyWorker")
    config.parallel_config.distributed_executor_backend = backend
    config.scheduler_config.async_scheduling = asked
    with CoreProcess(config) as core:
        assert core.start().max_concurrent_batches == batches
        core.add("a", PROMPT)
        core.add("b", PROMPT[3:], SamplingParams(max_tokens=20))
        answers = core.answers("a", "b")
        assert answers["a"] == (expected_tokens(PROMPT, 5), "length", None)
        assert answers["b"] == (expected_tokens(PROMPT[3:], 20), "length", None)
        core.stop()
