"""The engine core as a child process, over real sockets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.engine_core.core_process import VOCAB_SIZE, WAIT_S, CoreProcess, add_letter, toy_config
from tests.flow.conftest import all_gone
from vllm_lite.config import VllmConfig
from vllm_lite.engine_core.executor.toy import expected_tokens
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.messages import ENGINE_CORE_DEAD, PROTOCOL_VERSION, EngineCoreAbort, EngineCoreRequestType, EngineHello

PROMPT = list(b"the quick brown fox")
IDS = f"made of token ids in the vocabulary, 0 to {VOCAB_SIZE - 1}"


def test_a_life_from_hello_to_sigterm() -> None:
    with CoreProcess(toy_config(), engine_index=258) as core:
        hello = core.shake_hands()
        assert hello == EngineHello(PROTOCOL_VERSION, core.child.pid, 258)
        identity, body = core.receive(core.inputs[0])
        assert identity == b"\x02\x01"  # little endian
        ready = msgspec.msgpack.decode(body)
        assert ready[:10] == [PROTOCOL_VERSION, 258, core.child.pid, 256, 100, 4, "int64", "cpu", VOCAB_SIZE, "toy"]
        core.add("a", PROMPT)
        core.add("b", [1, 2, 3], SamplingParams(max_tokens=3))
        answers = core.answers("a", "b")
        assert answers["a"] == (expected_tokens(PROMPT, 5), "length", None)
        assert answers["b"] == (expected_tokens([1, 2, 3], 3), "length", None)
        assert core.stop() == ""


def test_an_id_that_another_client_uses_is_an_error() -> None:
    with CoreProcess(toy_config(toy_step_time=0.005), num_clients=2) as core:
        core.start()
        core.add("a", PROMPT, SamplingParams(max_tokens=20))
        core.bag()
        core.add("a", PROMPT, client_index=1)
        assert core.answers("a", client=1)["a"] == ([], "error", "request a is here already")
        assert core.answers("a")["a"][1] == "length"
        assert "dropped a request" in core.stop()


def test_a_client_whose_connection_closes_is_gone_with_its_requests() -> None:
    with CoreProcess(toy_config(toy_step_time=0.005), num_clients=2) as core:
        core.start()
        core.add("theirs", PROMPT, SamplingParams(max_tokens=200), client_index=1)
        core.bag(client=1)
        core.add("late", PROMPT, SamplingParams(max_tokens=200), client_index=1)
        core.inputs.pop().close(linger=1000)
        core.outputs.pop().close()
        core.add("ours", PROMPT, SamplingParams(max_tokens=230))
        while (stats := core.bag().scheduler_stats) is None or stats.num_running_reqs != 1:
            pass
        assert core.answers("ours")["ours"][1] == "length"
        core.utility(1, "reset_prefix_cache")
        while (answer := core.bag().utility_output) is None:
            pass
        assert answer.result is True  # so nobody holds a block
        assert core.stop() == ""


def test_several_clients_each_get_their_own_bags() -> None:
    with CoreProcess(toy_config(), num_clients=2) as core:
        core.start()
        core.add("a", PROMPT, client_index=0)
        core.add("b", PROMPT, client_index=1)
        assert core.answers("a", client=0)["a"][0] == expected_tokens(PROMPT, 5)
        assert core.answers("b", client=1)["b"][0] == expected_tokens(PROMPT, 5)
        core.stop()


def test_ping_is_answered_while_a_step_runs() -> None:
    with CoreProcess(toy_config(toy_step_time=0.5)) as core:
        core.start()
        core.add("a", PROMPT, SamplingParams(max_tokens=3))
        core.send(EngineCoreRequestType.PING, [0, 41])
        assert core.bag().pong == 41  # before the first token
        core.answers("a")
        core.stop()


def test_a_burst_that_wakes_the_core_shares_its_first_step() -> None:
    with CoreProcess(toy_config(toy_step_time=1.5)) as core:
        core.start()
        core.add("before", PROMPT, SamplingParams(max_tokens=1))  # the core learns how long a step takes
        core.answers("before")
        names = [f"burst-{number}" for number in range(12)]  # of which each takes its time to be opened
        for name in names:
            core.add(name, PROMPT, SamplingParams(max_tokens=1))
        rows = next(bag.outputs for bag in iter(core.bag, None) if bag.outputs)
        assert [row.request_id for row in rows] == names
        core.stop()


def test_an_aborted_request_is_not_heard_of_again() -> None:
    with CoreProcess(toy_config(toy_step_time=0.01)) as core:
        core.start()
        core.add("endless", PROMPT, SamplingParams(max_tokens=230))
        assert core.bag().outputs[0].request_id == "endless"
        core.send(EngineCoreRequestType.ABORT, EngineCoreAbort(["endless", "unknown"], "api"))
        core.send(EngineCoreRequestType.ABORT, EngineCoreAbort(["endless"], "api"))
        core.add("a", PROMPT)
        rows = []
        while not rows or rows[-1].request_id != "a":
            rows += core.bag().outputs
        rest = [core.bag() for _ in range(4)]
        assert [row.request_id for bag in rest for row in bag.outputs] == ["a"] * 4
        assert rest[-1].scheduler_stats is not None
        assert rest[-1].scheduler_stats.kv_cache_usage == 0.0
        core.stop()


def test_case_16_an_abort_right_behind_its_add_is_not_lost() -> None:
    with CoreProcess(toy_config(toy_step_time=0.05)) as core:
        core.start()
        core.add("busy", PROMPT, SamplingParams(max_tokens=8))
        core.bag()
        core.add("short-lived", PROMPT, SamplingParams(max_tokens=200))
        core.send(EngineCoreRequestType.ABORT, EngineCoreAbort(["short-lived"], "client_disconnect"))
        assert core.answers("busy")["busy"][1] == "length"
        core.add("a", PROMPT)
        bag = core.bag()
        while not bag.outputs:
            bag = core.bag()
        assert [row.request_id for row in bag.outputs] == ["a"]
        core.stop()


def test_case_16_an_abort_may_overtake_a_sessions_next_part() -> None:
    with CoreProcess(toy_config(toy_step_time=0.02)) as core:
        core.start()
        core.add("busy", PROMPT, SamplingParams(max_tokens=60))
        core.bag()
        for name in ("s0", "s1"):
            core.add(name, PROMPT, SamplingParams(max_tokens=2), resumable=True)
        answers = core.answers("s0", "s1")
        assert [reason for _, reason, _ in answers.values()] == ["length"] * 2
        for name in ("s0", "s1"):
            core.add(name, [7], SamplingParams(max_tokens=3), resumable=True, continues=True)
        core.send(EngineCoreRequestType.ABORT, EngineCoreAbort(["s0"]))
        told = [*PROMPT, answers["s1"][0][0], 7]
        assert core.answers("s1", "busy")["s1"][0] == expected_tokens(told, 3)
        core.send(EngineCoreRequestType.ABORT, EngineCoreAbort(["s1"]))
        core.add("s1", [7], resumable=True, continues=True)  # its session is gone
        core.add("a", PROMPT)
        assert core.answers("a")["a"][1] == "length"
        assert "s0" not in core.stop()


GARBAGE: list[list[bytes]] = [
    [b""],
    [b"\x00"],
    [b"\x63", b"\x90"],
    [b"\x02", b"\x90"],
    [b"\x04", b""],
    [b"\x05", b""],
    [b"no type byte at all"],
    [b"\x00", b"\xc1"],
    [b"\x00", msgspec.msgpack.encode({"request_id": "x"})],
    [b"\x00", msgspec.msgpack.encode([1, 2])],
    [b"\x00", msgspec.msgpack.encode(["x", ["y"], *[None] * 8, ["no number"]])],  # the client's index, in 11th place
    [b"\x01", msgspec.msgpack.encode([["a", 3]])],
    [b"\x01", b"\xc1\xc1", b"more"],
    [b"\x03", msgspec.msgpack.encode([0, "not a number", "x", []])],
    [b"\x03", b""],
    [b"\x06", msgspec.msgpack.encode([7, 1])],  # no such client
    [b"\x06", msgspec.msgpack.encode("ping")],
    [b"\x06", b"\x91" * 5000],  # nested beyond any stack
]


def test_garbage_is_dropped_and_everybody_else_is_served() -> None:
    with CoreProcess(toy_config(toy_step_time=0.002)) as core:
        core.start()
        core.add("a", PROMPT, SamplingParams(max_tokens=40))
        for frames in GARBAGE:
            core.send_raw(frames)
        core.add("b", PROMPT)
        answers = core.answers("a", "b")
        assert answers["a"] == (expected_tokens(PROMPT, 40), "length", None)
        assert answers["b"] == (expected_tokens(PROMPT, 5), "length", None)
        assert core.stop().count("dropped") == len(GARBAGE)


@pytest.mark.parametrize(
    ("letter", "words"),
    [
        (add_letter("bad", []), "prompt_token_ids must hold at least one token"),
        (add_letter("bad", [5, VOCAB_SIZE]), f"made of token ids in the vocabulary, 0 to {VOCAB_SIZE - 1}; got {VOCAB_SIZE}"),
        (add_letter("bad", [-1]), "prompt_token_ids must be made of token ids in the vocabulary"),
        (add_letter("bad", [1] * 256), "at most 255 tokens long"),
        (["bad", [1], None, None, None, 0.0], "either sampling_params or pooling_params"),
        (["bad", [1], None, {}, {}, 0.0], "either sampling_params or pooling_params"),
        (["bad", ["x"], None, {}, None, 0.0], "cannot be decoded"),
        (["bad", [1], None, {"temperature": -1.0}, None, 0.0], "temperature must be"),
        (["bad", [1], None, {"n": 1.0}, None, 0.0], "cannot be decoded"),
        (["bad", [1], [3], {}, None, 0.0], "cannot be decoded"),
        (["bad", [1], None, {"logit_bias": {VOCAB_SIZE: 1.0}}, None, 0.0], f"logit_bias must be {IDS}; got {VOCAB_SIZE}"),
        (["bad", [1], None, {"allowed_token_ids": [3, 10**6]}, None, 0.0], f"allowed_token_ids must be {IDS}; got 1000000"),
        (["bad", [1], None, {"allowed_token_ids": []}, None, 0.0], "allowed_token_ids must be None or a list with"),
        (["bad", [1], None, {"stop_token_ids": [VOCAB_SIZE]}, None, 0.0], f"stop_token_ids must be {IDS}"),
        (["bad", [1], None, {"all_stop_token_ids": [-1]}, None, 0.0], f"all_stop_token_ids must be {IDS}; got -1"),
        (["bad", [1], None, {"bad_words_token_ids": [[1], [2, VOCAB_SIZE]]}, None, 0.0], f"bad_words_token_ids must be {IDS}"),
        (["bad", [1], None, {"bad_words_token_ids": [[]]}, None, 0.0], f"bad_words_token_ids must be {IDS}"),
        (["bad", [1], None, {"logprobs": VOCAB_SIZE + 1}, None, 0.0], "logprobs must be -1 for all, or at most the size"),
    ],
)
def test_a_bad_request_is_told_why_and_hurts_nobody(letter: Any, words: str, running_core: CoreProcess) -> None:
    core = running_core
    core.add("good", PROMPT)
    core.send(EngineCoreRequestType.ADD, letter)
    answers = core.answers("good", "bad")
    assert answers["good"] == (expected_tokens(PROMPT, 5), "length", None)
    tokens, reason, error = answers["bad"]
    assert (tokens, reason) == ([], "error")
    assert error is not None
    assert words in error


@pytest.fixture(scope="module")
def running_core() -> Any:
    """One core for the tests that leave it as they found it."""
    config = toy_config(toy_error_token=7)
    config.model_config.max_logprobs = -1
    with CoreProcess(config) as core:
        core.start()
        yield core
        core.stop()


def test_a_duplicate_of_a_live_request_is_dropped(running_core: CoreProcess) -> None:
    params = SamplingParams(max_tokens=30)
    running_core.add("same", PROMPT, params)
    running_core.add("same", PROMPT, params)
    assert running_core.answers("same")["same"] == (expected_tokens(PROMPT, 30), "length", None)
    running_core.add("same", PROMPT)  # the id is free again
    assert running_core.answers("same")["same"] == (expected_tokens(PROMPT, 5), "length", None)


def test_a_request_that_fails_in_the_worker_fails_alone(running_core: CoreProcess) -> None:
    running_core.add("good", PROMPT)
    running_core.add("bad", [1, 7, 2])
    answers = running_core.answers("good", "bad")
    assert answers["good"] == (expected_tokens(PROMPT, 5), "length", None)
    assert answers["bad"] == ([], "error", "the toy was told to fail on token 7")


def test_pooling_goes_the_same_way(running_core: CoreProcess) -> None:
    letter = add_letter("p", PROMPT)
    letter.sampling_params, letter.pooling_params = None, PoolingParams()
    running_core.send(EngineCoreRequestType.ADD, letter)
    rows = []
    while not rows:
        rows = running_core.bag().outputs
    assert [(row.request_id, row.new_token_ids, str(row.finish_reason)) for row in rows] == [("p", [], "stop")]
    assert rows[0].pooling_output.shape == (8,)


def utility_answer(core: CoreProcess, call_id: int, method: str, *args: Any) -> Any:
    core.utility(call_id, method, *args)
    answer = None
    while answer is None:
        answer = core.bag().utility_output
    assert answer.call_id == call_id
    return answer


def test_case_19_utility_calls_answer_or_fail_by_name(running_core: CoreProcess) -> None:
    assert utility_answer(running_core, 1, "reset_prefix_cache").result is True
    assert utility_answer(running_core, 2, "collective_rpc", "sleep_for", None, [0.0]).result == [0]
    for call_id, method, args, words in [
        (3, "no_such_method", [], "Call to no_such_method method failed: NotImplementedError"),
        (4, "shutdown", [], "Call to shutdown method failed: NotImplementedError"),
        (5, "_execute", [], "Call to _execute method failed"),
        (6, "reset_prefix_cache", [1, 2, 3], "Call to reset_prefix_cache method failed: TypeError"),
        (7, "collective_rpc", ["no_such_method"], "Call to collective_rpc method failed: AttributeError"),
        (1 << 63, "collective_rpc", ["__class__", None, ["x"]], "Call to collective_rpc method failed"),
    ]:
        answer = utility_answer(running_core, call_id, method, *args)
        assert answer.result is None
        assert words in answer.failure_message


def test_case_18_a_result_that_cannot_be_encoded_is_a_failed_call(running_core: CoreProcess) -> None:
    answer = utility_answer(running_core, 9, "collective_rpc", "__getattribute__", None, ["get_info"])
    assert "the call's result cannot be sent" in answer.failure_message
    running_core.add("after", PROMPT)
    assert running_core.answers("after")["after"][1] == "length"


def test_case_20_a_burst_of_large_bags_arrives_intact(running_core: CoreProcess) -> None:
    """Arrays travel in frames of their own, which the sender may not touch before they have left."""
    params = SamplingParams(max_tokens=40, logprobs=-1, ignore_eos=True)
    names = [f"big{i}" for i in range(16)]
    for index, name in enumerate(names):
        running_core.add(name, [*PROMPT, 20 + index], params)
    tokens: dict[str, list[int]] = {name: [] for name in names}
    ended = 0
    while ended < len(names):
        for row in running_core.bag().outputs:
            if row.request_id in tokens:
                tokens[row.request_id] += row.new_token_ids
                ended += row.finish_reason is not None
                logprobs = row.new_logprobs
                assert logprobs is not None
                assert logprobs.logprob_token_ids.shape == (1, 96)
                assert logprobs.logprob_token_ids[0, :2].tolist() == row.new_token_ids * 2
                assert logprobs.logprobs[0].tolist() == [-0.5, *(-0.5 * k for k in range(1, 96))]
    assert tokens == {name: expected_tokens([*PROMPT, 20 + index], 40, params) for index, name in enumerate(names)}


def test_case_17_a_failing_step_is_the_engines_death() -> None:
    with CoreProcess(toy_config(toy_crash_at_step=3)) as core:
        core.start()
        core.add("a", PROMPT)
        for _ in range(3):
            core.bag()
        assert core.receive(core.outputs[0]) == [ENGINE_CORE_DEAD, core.identity]
        assert core.wait() == 1
        assert core.child.stderr is not None
        assert "the toy was told to crash at step 3" in core.child.stderr.read()


def test_sigterm_ends_waiting_requests_as_aborted() -> None:
    with CoreProcess(toy_config(toy_step_time=0.02)) as core:
        core.start()
        core.add("a", PROMPT, SamplingParams(max_tokens=230))
        core.bag()
        core.child.send_signal(signal.SIGTERM)
        tokens, reason, _ = core.answers("a")["a"]
        assert reason == "abort"
        assert tokens == expected_tokens(PROMPT, len(tokens) + 1)[1:]  # the first one came in the bag above
        assert core.wait() == 0


def test_sigterm_lets_requests_end_where_time_was_given() -> None:
    config = toy_config(toy_step_time=0.01)
    config.shutdown_timeout = 60.0
    with CoreProcess(config) as core:
        core.start()
        core.add("a", PROMPT, SamplingParams(max_tokens=150))
        first = core.bag().outputs[0].new_token_ids
        core.child.send_signal(signal.SIGTERM)
        answers: dict[int, str | None] = {}
        while not answers:  # calls are refused once the signal is known
            core.utility(len(first), "is_sleeping")
            bag = core.bag()
            first += [token for row in bag.outputs for token in row.new_token_ids]
            if bag.utility_output is not None and bag.utility_output.failure_message is not None:
                answers[bag.utility_output.call_id] = bag.utility_output.failure_message
        assert "RuntimeError: the engine is shutting down" in str(answers.values())
        core.add("late", PROMPT)
        rest = core.answers("a", "late")
        assert (first + rest["a"][0], rest["a"][1]) == (expected_tokens(PROMPT, 150), "length")
        assert rest["late"] == ([], "abort", None)
        assert core.wait() == 0


def test_requests_that_have_had_their_time_are_aborted() -> None:
    config = toy_config(toy_step_time=0.02)
    config.shutdown_timeout = 0.1
    with CoreProcess(config) as core:
        core.start()
        core.add("a", PROMPT, SamplingParams(max_tokens=230))
        core.bag()
        core.child.send_signal(signal.SIGTERM)
        tokens, reason, _ = core.answers("a")["a"]
        assert reason == "abort"
        assert 0 < len(tokens) < 200
        assert core.wait() == 0


def test_ctrl_c_is_not_for_the_core() -> None:
    with CoreProcess(toy_config()) as core:
        core.start()
        core.child.send_signal(signal.SIGINT)
        core.add("a", PROMPT)
        assert core.answers("a")["a"][1] == "length"
        core.stop()


@pytest.mark.parametrize("when", ["before the handshake", "idle", "busy"])
def test_the_core_ends_with_its_parent(when: str) -> None:
    with CoreProcess(toy_config(toy_step_time=0.01)) as core:
        if when != "before the handshake":
            core.start()
        else:
            core.receive(core.handshake)
        if when == "busy":
            core.add("a", PROMPT, SamplingParams(max_tokens=230))
            core.bag()
        os.close(core.death_pipe)
        core.death_pipe = -1
        assert core.child.wait(5) in (0, 1)


def test_sigterm_while_starting_ends_it() -> None:
    with CoreProcess(toy_config()) as core:
        core.receive(core.handshake)  # HELLO: from here on it waits for an answer
        core.child.send_signal(signal.SIGTERM)
        assert core.wait() == 128 + signal.SIGTERM


def mp_config(worker_cls: str = "vllm_lite.engine_core.executor.toy.ToyWorker", **additional: Any) -> VllmConfig:
    config = toy_config(worker_cls=worker_cls, **additional)
    config.parallel_config.distributed_executor_backend = "mp"
    config.parallel_config.world_size = 2
    return config


def workers_of(core: CoreProcess) -> list[psutil.Process]:
    workers = psutil.Process(core.child.pid).children()
    assert len(workers) == 2
    return workers


def test_with_worker_processes_tokens_are_the_same_and_nothing_is_left() -> None:
    with CoreProcess(mp_config()) as core:
        core.start()
        workers = workers_of(core)
        core.add("a", PROMPT)
        assert core.answers("a")["a"] == (expected_tokens(PROMPT, 5), "length", None)
        core.stop()
        assert all_gone(workers, 5)


@pytest.mark.parametrize("when", ["idle", "busy"])
@pytest.mark.parametrize("victim", [0, 1])
def test_the_death_of_a_worker_is_the_engines(victim: int, when: str) -> None:
    with CoreProcess(mp_config(toy_step_time=0.02)) as core:
        core.start()
        workers = workers_of(core)
        if when == "busy":
            core.add("a", PROMPT, SamplingParams(max_tokens=200))
            core.bag()
        workers[victim].kill()
        while core.receive(core.outputs[0])[0] != ENGINE_CORE_DEAD:
            pass
        assert core.wait() == 1
        assert all_gone(workers, 5)
        assert core.child.stderr is not None
        assert f"worker {victim} ended with exit code -9" in core.child.stderr.read()


@pytest.mark.parametrize("how", ["sigkill", "death pipe"])
def test_workers_end_with_the_core(how: str) -> None:
    with CoreProcess(mp_config(toy_step_time=0.02)) as core:
        core.start()
        workers = workers_of(core)
        core.add("a", PROMPT, SamplingParams(max_tokens=200))
        core.bag()
        if how == "sigkill":
            core.child.kill()
        else:
            os.close(core.death_pipe)
            core.death_pipe = -1
        core.wait()
        assert all_gone(workers, 5)


def test_sigterm_while_workers_start_leaves_none() -> None:
    config = mp_config(worker_cls="tests.engine_core.slow_worker.SlowWorker")
    with CoreProcess(config) as core:
        core.shake_hands()
        core_process = psutil.Process(core.child.pid)
        workers: list[psutil.Process] = []
        while len(workers) < 2:
            workers = core_process.children()
        core.child.send_signal(signal.SIGTERM)
        assert core.wait() == 128 + signal.SIGTERM
        assert all_gone(workers, 5)


PARENT = """
import os, sys
sys.path.insert(0, {root!r})
from tests.engine_core.core_process import CoreProcess, toy_config
core = CoreProcess(toy_config())
core.start()
print(core.child.pid, flush=True)
os.kill(os.getpid(), {signal})
"""


def test_sigkill_of_the_parent_leaves_nothing() -> None:
    script = PARENT.format(root=str(Path(__file__).parents[2]), signal=int(signal.SIGKILL))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        core_pid = int(parent.stdout.readline())
        core = psutil.Process(core_pid)
        parent.wait(WAIT_S)
        assert all_gone([core], 5)


@pytest.mark.parametrize(
    ("change", "error_type", "words"),
    [
        ({"max_model_len": 400}, "VLLMValidationError", "max_model_len must be <= 396"),
        ({"async": True}, "VLLMValidationError", "async_scheduling must be"),
    ],
)
def test_a_start_that_fails_says_why(change: dict[str, Any], error_type: str, words: str) -> None:
    config = toy_config()
    config.model_config.max_model_len = change.get("max_model_len", 256)
    config.scheduler_config.async_scheduling = change.get("async")
    config.parallel_config.distributed_executor_backend = "uni" if "async" in change else "toy"
    with CoreProcess(config) as core:
        core.shake_hands()
        failure = core.start_failure()
        assert failure.error_type == error_type
        assert words in failure.message
        assert core.wait() == 1


def test_a_configuration_that_cannot_be_read_is_a_failed_start() -> None:
    with CoreProcess(b"\xc1") as core:
        core.shake_hands()
        assert core.start_failure().error_type == "DecodeError"
        assert core.wait() == 1


def test_the_core_imports_neither_torch_nor_the_front_end() -> None:
    code = (
        "import sys; import vllm_lite.engine_core.proc, vllm_lite.engine_core.executor.toy\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('torch', 'transformers') or 'frontend' in m]\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
