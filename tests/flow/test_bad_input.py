"""A bad request is a clear error that names the field; its neighbours never notice, and the engine goes on."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.flow.conftest import MakeEngine
from vllm_lite import AsyncLLM, SamplingParams
from vllm_lite.engine_core.executor.toy import expected_tokens
from vllm_lite.exceptions import VLLMValidationError

GOOD_PROMPT = list(b"a good neighbour")
MAX_LEN = 256

BAD_PROMPTS: list[tuple[Any, str]] = [
    ("", "prompt"),
    ([], "prompt"),
    ({"prompt_token_ids": []}, "prompt"),
    ("x" * MAX_LEN, "prompt"),
    ([1] * (MAX_LEN + 1), "prompt"),
    ([320], "prompt_token_ids"),
    ([-1], "prompt_token_ids"),
    ([2**70], "prompt_token_ids"),
    ([1.5], "prompt"),
    ([True], "prompt"),
    ([None], "prompt"),
    ([[1]], "prompt"),
    (None, "prompt"),
    (5, "prompt"),
    (b"bytes", "prompt"),
    ("\ud800", "prompt"),
    ({"prompt": 5}, "prompt"),
    ({}, "prompt"),
    ({"prompt": "x", "multi_modal_data": {"image": 1}}, "prompt"),
    ({"type": "multimodal", "prompt_token_ids": [1]}, "prompt type"),
    ([{"role": "user"}, "not a message"], "messages[1]"),
]

BAD_PARAMS: list[tuple[str, Any]] = [
    ("n", 0),
    ("n", 1.0),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("temperature", -1),
    ("temperature", math.nan),
    ("temperature", "hot"),
    ("top_p", 2),
    ("top_p", math.nan),
    ("stop_token_ids", [320]),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [320]),
    ("logit_bias", {320: 1.0}),
    ("logprobs", 21),
    ("extra_args", {"unknown": 1}),
]


@pytest.fixture
def engine(make_engine: MakeEngine) -> AsyncLLM:
    return make_engine(max_model_len=MAX_LEN)


async def tokens_of(engine: AsyncLLM, prompt: Any, params: Any, request_id: Any = "bad") -> list[int]:
    *_, last = [output async for output in engine.generate(prompt, params, request_id)]
    return last.outputs[0].token_ids


async def beside_a_neighbour(engine: AsyncLLM, misuse: Callable[[], Any]) -> None:
    """Run `misuse` while a good request streams; then both it and a new one must get exactly their tokens."""
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    async with asyncio.TaskGroup() as group:
        neighbour = group.create_task(tokens_of(engine, GOOD_PROMPT, params, "good"))
        await misuse()
    assert neighbour.result() == expected_tokens(GOOD_PROMPT, 200)
    assert await tokens_of(engine, GOOD_PROMPT, SamplingParams(max_tokens=5), "after") == expected_tokens(GOOD_PROMPT, 5)
    assert engine.output_processor.get_num_unfinished_requests() == 0
    assert not engine.errored


async def test_prompts(engine: AsyncLLM) -> None:
    async def misuse() -> None:
        for prompt, field in BAD_PROMPTS:
            with pytest.raises(VLLMValidationError) as caught:
                await tokens_of(engine, prompt, SamplingParams(max_tokens=5))
            assert caught.value.parameter == field, prompt
            assert str(caught.value).startswith(f"{field} must be "), prompt

    await beside_a_neighbour(engine, misuse)


async def test_the_longest_prompt_leaves_room_for_one_token(engine: AsyncLLM) -> None:
    prompt = [1] * (MAX_LEN - 1)
    assert await tokens_of(engine, prompt, SamplingParams(max_tokens=None)) == expected_tokens(prompt, 1)
    assert await tokens_of(engine, prompt, SamplingParams(max_tokens=50)) == expected_tokens(prompt, 1)


async def test_parameters(engine: AsyncLLM) -> None:
    async def misuse() -> None:
        for field, value in BAD_PARAMS:
            with pytest.raises(VLLMValidationError, match="must be ") as caught:
                await tokens_of(engine, GOOD_PROMPT, SamplingParams(**{field: value}))
            assert caught.value.parameter == field

    await beside_a_neighbour(engine, misuse)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("params", {"sampling_params": {"max_tokens": 5}}),
        ("params", {"sampling_params": None}),
        ("request_id", {"request_id": ""}),
        ("request_id", {"request_id": 5}),
        ("priority", {"priority": 1.5}),
        ("priority", {"priority": 2**70}),
        ("data_parallel_rank", {"data_parallel_rank": 1}),
        ("lora_request", {"lora_request": "adapter"}),
        ("session_id", {"session_id": 5}),
        ("kv_hints", {"kv_hints": {"value": 2**70}}),
        ("tokenization_kwargs", {"prompt": "text", "tokenization_kwargs": {"unknown": 1}}),
    ],
)
async def test_arguments(engine: AsyncLLM, field: str, arguments: dict[str, Any]) -> None:
    call = {"prompt": GOOD_PROMPT, "sampling_params": SamplingParams(max_tokens=5), "request_id": "bad"} | arguments

    async def misuse() -> None:
        with pytest.raises(VLLMValidationError) as caught:
            await anext(engine.generate(**call))
        assert caught.value.parameter == field

    await beside_a_neighbour(engine, misuse)


async def test_a_request_that_fails_in_the_worker_fails_alone(make_engine: MakeEngine) -> None:
    engine = make_engine(max_model_len=MAX_LEN, additional_config={"toy_error_token": 7})

    async def misuse() -> None:
        (output,) = [output async for output in engine.generate([7], SamplingParams(max_tokens=5), "bad")]
        assert (output.outputs[0].finish_reason, output.outputs[0].token_ids) == ("error", [])
        assert output.outputs[0].stop_reason == "the toy was told to fail on token 7"

    await beside_a_neighbour(engine, misuse)
