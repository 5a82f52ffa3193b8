"""Pausing, sleeping and waking an engine core, step by step and over its sockets."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from tests.engine_core.core_process import CoreProcess, add_letter, toy_config
from vllm_lite.engine_core.core import EngineCore
from vllm_lite.engine_core.executor.toy import ToyExecutor, expected_tokens
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.messages import EngineCoreAbort, EngineCoreRequestType

PROMPT = list(b"the quick brown fox")


def make_core(**scheduler: Any) -> EngineCore:
    config = toy_config()
    for name, value in scheduler.items():
        setattr(config.scheduler_config, name, value)
    return EngineCore(config, ToyExecutor)


def add(core: EngineCore, request_id: str, max_tokens: int = 8) -> None:
    letter = add_letter(request_id, PROMPT, SamplingParams(max_tokens=max_tokens))
    core.add_request(core.preprocess_add_request(letter))


def run(core: EngineCore, steps: int = 1000) -> dict[str, list[int]]:
    """At most `steps` steps, fewer where there is no work left."""
    tokens: dict[str, list[int]] = {}
    while core.has_work() and steps:
        bags = core.step()
        core.run_idle_actions()
        for bag in bags.values():
            for row in bag.outputs:
                tokens.setdefault(row.request_id, []).extend(row.new_token_ids)
        steps -= 1
    return tokens


def test_pausing_an_idle_engine_is_done_at_once_and_newcomers_wait() -> None:
    core = make_core()
    assert core.pause_scheduler("abort") is None
    assert core.is_scheduler_paused()
    assert core.is_sleeping()
    add(core, "a")
    assert not core.has_work()
    assert run(core) == {}
    core.resume_scheduler()
    assert run(core) == {"a": expected_tokens(PROMPT, 8)}


@pytest.mark.parametrize("clear_cache", [True, False])
def test_keep_freezes_requests_and_changes_no_token(clear_cache: bool) -> None:
    core = make_core()
    add(core, "a")
    before = run(core, 3)["a"]
    core.pause_scheduler("keep", clear_cache)
    assert run(core) == {}
    request = core.scheduler.requests["a"]
    assert request.num_preemptions == clear_cache  # an emptied cache means computing again
    core.resume_scheduler()
    assert before + run(core)["a"] == expected_tokens(PROMPT, 8)


def test_wait_lets_end_what_has_begun_and_holds_back_the_rest() -> None:
    core = make_core(max_num_seqs=1)
    add(core, "a")
    add(core, "b")
    run(core, 2)
    paused = core.pause_scheduler("wait")
    assert isinstance(paused, Future)
    assert run(core) == {"a": expected_tokens(PROMPT, 8)[2:]}
    assert paused.result(0) is None
    core.resume_scheduler()
    assert run(core) == {"b": expected_tokens(PROMPT, 8)}


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_wait_lets_end_what_was_preempted_too(policy: str) -> None:
    core = make_core(policy=policy)
    add(core, "a")
    run(core, 2)
    core.reset_prefix_cache(reset_running_requests=True)
    letter = add_letter("urgent", PROMPT, SamplingParams(max_tokens=2), priority=-1)
    core.add_request(core.preprocess_add_request(letter))
    paused = core.pause_scheduler("wait")
    assert run(core) == {"a": expected_tokens(PROMPT, 8)[2:]}
    assert paused is not None
    assert paused.done()
    core.resume_scheduler()
    assert run(core) == {"urgent": expected_tokens(PROMPT, 2)}


@pytest.mark.parametrize("again", ["pause", "sleep"])
@pytest.mark.parametrize("partly", [False, True])
def test_what_is_frozen_stays_so_while_the_engine_sleeps(again: str, partly: bool) -> None:
    core = make_core()
    add(core, "a")
    before = run(core, 3)["a"]
    assert core.sleep(1, "keep") is None
    if partly:
        assert not core.wake_up(["weights"])
    assert (core.pause_scheduler("wait") if again == "pause" else core.sleep(1, "wait")) is None
    assert run(core) == {}
    assert core.wake_up()
    assert before + run(core)["a"] == expected_tokens(PROMPT, 8)


def test_a_sleeping_engine_can_give_up_what_is_frozen() -> None:
    core = make_core()
    add(core, "a")
    run(core, 3)
    core.sleep(1, "keep")
    assert core.pause_scheduler("abort") is None
    assert core.scheduler.requests == {}
    add(core, "b")
    assert run(core) == {}
    assert core.wake_up()
    assert run(core) == {"b": expected_tokens(PROMPT, 8)}


def test_abort_ends_everybody() -> None:
    core = make_core(max_num_seqs=1)
    add(core, "a")
    add(core, "b")
    run(core, 2)
    assert core.pause_scheduler("abort") is None
    assert core.model_executor.worker._requests == {}  # type: ignore[attr-defined]  # it has heard of it
    assert run(core) == {}
    assert core.scheduler.requests == {}
    assert core.scheduler.kv_cache_manager.usage == 0.0


@pytest.mark.parametrize("ahead", [False, True])
def test_after_the_last_answer_an_engine_in_process_sleeps_at_once(ahead: bool) -> None:
    core = make_core(async_scheduling=ahead)
    add(core, "a")
    tokens: list[int] = []
    while len(tokens) < 8:
        tokens += [token for bag in core.step().values() for row in bag.outputs for token in row.new_token_ids]
    assert core.sleep(1) is None
    assert core.wake_up()
    core.shutdown()


def test_going_on_before_rest_fails_the_pause() -> None:
    core = make_core()
    add(core, "a")
    run(core, 2)
    paused = core.pause_scheduler("wait")
    assert paused is not None
    core.resume_scheduler()
    with pytest.raises(RuntimeError, match="resumed before"):
        paused.result(0)
    assert run(core)["a"] == expected_tokens(PROMPT, 8)[2:]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_sleep_gives_memory_up_and_a_frozen_request_survives_it(level: int) -> None:
    core = make_core()
    size = core.collective_rpc("kv_cache_bytes")
    add(core, "a")
    before = run(core, 3)["a"]
    core.sleep(level, "keep")
    run(core)
    assert core.is_sleeping()
    assert core.collective_rpc("kv_cache_bytes") == ([0] if level else size)
    add(core, "b")
    assert run(core) == {}
    if level:
        with pytest.raises(RuntimeError, match="wake_up"):
            core.resume_scheduler()
        assert not core.wake_up(["weights"])
        assert core.is_sleeping()
        assert core.wake_up(["kv_cache", "scheduling"])
    else:
        assert core.wake_up(["scheduling"])
    assert core.collective_rpc("kv_cache_bytes") == size
    assert not core.is_sleeping()
    after = run(core)
    assert before + after["a"] == after["b"] == expected_tokens(PROMPT, 8)


def test_waking_names_nothing_unknown_and_is_harmless_twice() -> None:
    core = make_core()
    core.sleep(1)
    with pytest.raises(VLLMValidationError, match="tags must be one of 'weights', 'kv_cache', 'scheduling'"):
        core.wake_up(["kv_cache", "coffee"])
    assert not core.wake_up(["scheduling"])
    assert core.wake_up()
    assert core.wake_up()


def test_the_kv_cache_is_released_only_when_nobody_can_need_it() -> None:
    core = make_core()
    with pytest.raises(RuntimeError, match="once the engine is paused"):
        core.release_kv_cache_memory()
    add(core, "a")
    core.pause_scheduler("keep")
    with pytest.raises(RuntimeError, match="holds no request"):
        core.release_kv_cache_memory()
    core.pause_scheduler("abort")
    run(core)
    core.release_kv_cache_memory()
    assert core.collective_rpc("kv_cache_bytes") == [0]
    assert core.wake_up()
    add(core, "b")
    assert run(core)["b"] == expected_tokens(PROMPT, 8)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda core: core.pause_scheduler("later"), "mode must be one of 'abort', 'wait', 'keep'"),
        (lambda core: core.pause_scheduler("abort", 1), "clear_cache must be True or False"),
        (lambda core: core.sleep(3), "level must be an integer"),
        (lambda core: core.sleep(1, "never"), "mode must be one of"),
    ],
)
def test_arguments_are_checked_before_anything_happens(call: Any, words: str) -> None:
    core = make_core()
    with pytest.raises(VLLMValidationError, match=words):
        call(core)
    assert not core.is_sleeping()


class Answers:
    """Reads bags until what is looked for has come; keeps the order of all of it."""

    def __init__(self, core: CoreProcess) -> None:
        self.core = core
        self.seen: list[tuple[str, Any]] = []
        self.num_running = 0

    def until_call(self, call_id: int) -> Any:
        while True:
            bag = self.core.bag()
            if bag.scheduler_stats is not None:
                self.num_running = bag.scheduler_stats.num_running_reqs
            for row in bag.outputs:
                self.seen += [(row.request_id, token) for token in row.new_token_ids]
                if row.finish_reason is not None:
                    self.seen.append((row.request_id, str(row.finish_reason)))
            if bag.utility_output is not None:
                assert bag.utility_output.call_id == call_id
                return bag.utility_output


def test_case_19_a_deferred_reply_comes_after_the_last_rows() -> None:
    with CoreProcess(toy_config(toy_step_time=0.005)) as core:
        core.start()
        answers = Answers(core)
        core.add("a", PROMPT, SamplingParams(max_tokens=20))
        core.bag()
        core.utility(1, "pause_scheduler", "wait", True)
        assert answers.until_call(1).failure_message is None
        assert answers.seen[-1] == ("a", "length")
        core.utility(2, "is_sleeping")
        assert answers.until_call(2).result is True
        core.add("b", PROMPT, SamplingParams(max_tokens=200))
        core.utility(3, "sleep", 0, "abort")
        answers.until_call(3)
        assert answers.seen[-1] == ("b", "abort")
        assert answers.num_running == 0
        core.utility(4, "wake_up", None)
        assert answers.until_call(4).result is True
        core.add("c", PROMPT)
        assert core.answers("c")["c"] == (expected_tokens(PROMPT, 5), "length", None)
        core.stop()


def test_a_pending_pause_is_answered_at_the_end() -> None:
    with CoreProcess(toy_config(toy_step_time=0.02)) as core:
        core.start()
        core.add("a", PROMPT, SamplingParams(max_tokens=230))
        core.bag()
        core.utility(7, "pause_scheduler", "wait", True)
        core.utility(8, "is_scheduler_paused")
        answers = Answers(core)
        assert answers.until_call(8).result is True
        core.child.terminate()
        assert "shutting down" in answers.until_call(7).failure_message
        assert core.wait() == 0


def test_a_paused_engine_still_takes_aborts() -> None:
    with CoreProcess(toy_config()) as core:
        core.start()
        answers = Answers(core)
        core.utility(1, "pause_scheduler", "keep", True)
        answers.until_call(1)
        core.add("a", PROMPT)
        core.send(EngineCoreRequestType.ABORT, EngineCoreAbort(["a"]))
        core.utility(2, "resume_scheduler")
        answers.until_call(2)
        core.add("b", PROMPT)
        assert core.answers("b")["b"][1] == "length"
        assert answers.seen == []
        core.stop()
