"""LLM: the same tokens as AsyncLLM, in the order of the prompts, wherever the engine core runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from vllm_lite import LLM, AsyncEngineArgs, AsyncLLM, PoolingParams, SamplingParams
from vllm_lite.engine_core.executor.toy import expected_tokens
from vllm_lite.entrypoints.llm import MULTIPROCESSING
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.frontend.core_client import Bag

PROMPTS = ["a", "Hello, world", "The capital of France is", "a"]
GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def answers(tiny_model_path: Path) -> list[list[int]]:
    """What AsyncLLM says to PROMPTS."""

    async def last(engine: AsyncLLM, index: int, prompt: str) -> list[int]:
        *_, output = [output async for output in engine.generate(prompt, GREEDY, str(index))]
        return output.outputs[0].token_ids

    async def run() -> list[list[int]]:
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(tiny_model_path)))
        found = await asyncio.gather(*(last(engine, i, prompt) for i, prompt in enumerate(PROMPTS)))
        engine.shutdown()
        return found

    return asyncio.run(run())


@pytest.fixture
def toy(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    monkeypatch.setenv(MULTIPROCESSING, "0")
    llm = LLM(str(tiny_model_path), distributed_executor_backend="toy")
    yield llm
    assert not llm.llm_engine.has_unfinished_requests()
    assert llm.reset_prefix_cache() is True
    llm.shutdown()


@pytest.mark.parametrize("processes", ["0", "1"])
def test_tokens_equal_those_of_async_llm(
    tiny_model_path: Path, answers: list[list[int]], processes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MULTIPROCESSING, processes)
    llm = LLM(str(tiny_model_path))
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    llm.shutdown()
    assert [output.outputs[0].token_ids for output in outputs] == answers
    assert [output.prompt for output in outputs] == PROMPTS
    assert [output.outputs[0].text for output in outputs] == [llm.get_tokenizer().decode(ids) for ids in answers]


@pytest.mark.parametrize(
    ("prompts", "count"),
    [("text", 1), ([1, 2], 1), ([[1, 2], "b"], 2), ({"prompt": "c"}, 1), ([{"prompt": "d"}] * 3, 3), ([], 0)],
)
def test_one_prompt_or_many(toy: LLM, prompts: Any, count: int) -> None:
    outputs = toy.generate(prompts, SamplingParams(max_tokens=2), use_tqdm=False)
    assert len(outputs) == count
    assert all(output.finished for output in outputs)


def test_parameters_for_each_prompt(toy: LLM) -> None:
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (1, 5, 3)]
    outputs = toy.generate([[1], [2], [3]], params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 5, 3]
    assert [len(params) for params in (toy.generate([1, 2], use_tqdm=False)[0].outputs[0].token_ids,)] <= [16]


def test_chat(toy: LLM) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    (one,) = toy.chat(conversation, GREEDY, use_tqdm=False)
    assert one.prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    both = toy.chat([conversation, [{"role": "user", "content": "ho"}]], GREEDY, use_tqdm=False)
    assert both[0].outputs[0].token_ids == one.outputs[0].token_ids
    assert both[1].prompt == "<|im_start|>user\nho<|im_end|>\n<|im_start|>assistant\n"


def test_the_bar_is_on_standard_error(toy: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    toy.generate(["a", "b"], GREEDY)
    out, err = capsys.readouterr()
    assert out == ""
    assert "2/2" in err
    toy.generate(["a", "b"], GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"prompts": ["a", []]}, "prompt must be"),
        ({"prompts": ["a"], "sampling_params": [GREEDY, GREEDY]}, "sampling_params must be one for each prompt"),
        ({"prompts": ["a"], "sampling_params": PoolingParams()}, "sampling_params must be SamplingParams or a list"),
        ({"prompts": ["a", "b"], "sampling_params": [GREEDY, "x"]}, "sampling_params must be SamplingParams"),
        ({"prompts": ["a"], "priority": [1, 2]}, "priority must be None or a list of one for each prompt"),
        ({"prompts": ["a"], "priority": 1}, "priority must be None or a list of one for each prompt"),
        ({"prompts": ["a"], "lora_request": object()}, "lora_request must be None"),
        ({"prompts": 3}, "prompt must be a string"),
    ],
)
def test_refusals_leave_nothing(toy: LLM, arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(VLLMValidationError, match=named):
        toy.generate(**arguments, use_tqdm=False)
    assert not toy.llm_engine.has_unfinished_requests()


def test_messages_that_are_none_are_refused(toy: LLM) -> None:
    for messages in ("hi", [None], [[], 5]):
        with pytest.raises(VLLMValidationError, match="messages must be"):
            toy.chat(messages)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [("chat_template", 5), ("add_generation_prompt", 1), ("tools", {}), ("tools", [5]), ("chat_template_kwargs", [])],
)
def test_a_bad_argument_of_chat_is_refused_by_name(toy: LLM, field: str, value: Any) -> None:
    with pytest.raises(VLLMValidationError, match=f"{field} must be"):
        toy.chat([{"role": "user", "content": "hi"}], **{field: value})


def test_threads_take_turns(toy: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    step, steps = toy.llm_engine.step, list[int]()

    def noting() -> Any:
        steps.append(threading.get_ident())
        return step()

    def ask(i: int) -> Any:
        together.wait()
        return toy.generate([[i], [i]], GREEDY, use_tqdm=False)

    monkeypatch.setattr(toy.llm_engine, "step", noting)
    together = threading.Barrier(3)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(ask, range(3)))
    assert [[output.outputs[0].token_ids for output in outputs] for outputs in found] == [
        [expected_tokens([i], 12)] * 2 for i in range(3)
    ]
    assert len(list(groupby(steps))) == 3


def test_ctrl_c_leaves_nothing_in_the_engine(toy: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(toy.llm_engine, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            toy.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert toy.llm_engine.get_num_unfinished_requests() == 0
    assert len(toy.generate(PROMPTS, GREEDY, use_tqdm=False)) == 4


def test_vectors(toy: LLM) -> None:
    outputs = toy.encode(["a", [1, 2, 3]], [PoolingParams(), PoolingParams(pooling_type="mean")])
    assert [output.prompt_token_ids for output in outputs] == [[97], [1, 2, 3]]
    assert all(abs(float((output.outputs.data**2).sum()) - 1) < 1e-5 for output in outputs)
    with pytest.raises(VLLMValidationError, match="pooling_params must be PoolingParams"):
        toy.encode(["a"], GREEDY)  # type: ignore[arg-type]


def test_calls(toy: LLM) -> None:
    assert toy.collective_rpc("get_info")[0]["attention_backend"] == "toy"


@pytest.mark.parametrize("processes", ["0", "1"])
def test_an_engine_that_slept_answers_as_before(tiny_model_path: Path, processes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MULTIPROCESSING, processes)
    llm = LLM(str(tiny_model_path), distributed_executor_backend="toy")
    before = llm.generate([[1, 2]], GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    llm.sleep(level=1)
    assert llm.wake_up(["weights"]) is False
    assert llm.wake_up() is True
    assert llm.generate([[1, 2]], GREEDY, use_tqdm=False)[0].outputs[0].token_ids == before
    llm.shutdown()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda llm: llm.sleep(9), "level must be an integer >= 0 and <= 2; got 9"),
        (lambda llm: llm.sleep(mode="stop"), "mode must be one of"),
        (lambda llm: llm.wake_up("weights"), "tags must be None or a list of tags"),
        (lambda llm: llm.wake_up(["coffee"]), "tags must be one of"),
        (lambda llm: llm.start_profile(5), "profile_prefix must be a string"),
    ],
)
def test_a_bad_argument_of_a_call_is_refused_by_name(toy: LLM, call: Callable[[LLM], object], named: str) -> None:
    with pytest.raises(VLLMValidationError, match=named):
        call(toy)
    assert len(toy.generate([[1, 2]], GREEDY, use_tqdm=False)) == 1


@pytest.mark.parametrize("processes", ["0", "1"])
def test_an_engine_that_sleeps_says_so(tiny_model_path: Path, processes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MULTIPROCESSING, processes)
    llm = LLM(str(tiny_model_path), distributed_executor_backend="toy")
    llm.sleep()
    for awake in (["weights"], None):
        with pytest.raises(RuntimeError, match=r"no request can go on while the engine is asleep: call wake_up\(\) first"):
            llm.generate([[1, 2]], GREEDY, use_tqdm=False)
        assert llm.wake_up(awake) is (awake is None)
    (output,) = llm.generate([[1, 2]], GREEDY, use_tqdm=False)
    assert output.outputs[0].token_ids == expected_tokens([1, 2], GREEDY.max_tokens or 0)
    llm.shutdown()


def test_nobody_waits_for_the_turn_of_a_request_that_sleeps(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MULTIPROCESSING, "1")
    llm = LLM(str(tiny_model_path), distributed_executor_backend="toy")
    with ThreadPoolExecutor(1) as pool, llm._turn:  # as another thread's request has it
        llm.sleep(mode="keep")
        waiting = pool.submit(llm.generate, [[1, 2]], GREEDY, use_tqdm=False)
        with pytest.raises(RuntimeError, match="engine is asleep"):
            waiting.result(timeout=10)
    llm.shutdown()


@pytest.mark.parametrize("call", ["sleep", "reset_prefix_cache", "collective_rpc"])
def test_a_call_from_another_thread_waits_for_its_turn_in_process(
    tiny_model_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MULTIPROCESSING, "0")
    llm = LLM(str(tiny_model_path), distributed_executor_backend="toy")
    core = llm.llm_engine.engine_core
    run_step, in_a_step, called = core.get_bag, threading.Event(), threading.Event()

    def get_bag() -> Bag:
        if not in_a_step.is_set():
            in_a_step.set()
            assert not called.wait(0.2)
        return run_step()

    def call_utility(method: str, *args: Any) -> list[Any]:
        called.set()
        return []

    monkeypatch.setattr(core, "get_bag", get_bag)
    monkeypatch.setattr(core, "call_utility", call_utility)
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(llm.generate, [[1, 2]], GREEDY, use_tqdm=False)
        assert in_a_step.wait(30)
        calling = pool.submit(getattr(llm, call), *(["get_info"] if call == "collective_rpc" else []))
        assert len(answer.result(30)[0].outputs[0].token_ids) == 12
        calling.result(30)
    llm.shutdown()


def test_profiles_are_begun_and_ended(toy: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(toy.llm_engine.engine_core, "call_utility", lambda *call: asked.append(call))
    toy.start_profile("mine")
    toy.stop_profile()
    monkeypatch.undo()
    assert asked == [("profile", True, "mine"), ("profile", False)]
