"""Scheduling changes when a token comes, never which one: greedy answers equal transformers' `generate`, token by token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.flow.conftest import MakeEngine
from vllm_lite import AsyncLLM, RequestOutput, SamplingParams
from vllm_lite.tracing.journey.load import load_run

SHARED_START = list(b"All of these prompts begin with the same forty-eight bytes. ")[:48]
PROMPTS = [
    list(b"a"),
    list(b"Hello, world"),
    list(b"The capital of France is"),
    [256, *b"zzzz"],
    list(bytes(range(100))),
    [*SHARED_START, *b"One."],
    [*SHARED_START, *b"Another one."],
    SHARED_START,
]
Generate = Callable[[list[int], int], list[int]]


def reference(folder: Path, dtype: str) -> Generate:
    """`transformers`' own greedy answer: prompt ids and a limit to token ids."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))

    def generate(prompt: list[int], max_tokens: int) -> list[int]:
        ids = torch.tensor([prompt])
        answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False)
        tokens: list[int] = answer[0, len(prompt) :].tolist()
        return tokens

    return generate


@pytest.fixture(scope="module")
def tiny_answers(tiny_model_path: Path) -> list[list[int]]:
    generate = reference(tiny_model_path, "float64")
    return [generate(prompt, 48) for prompt in PROMPTS]


async def last_output(engine: AsyncLLM, prompt: Any, request_id: str, max_tokens: int = 48) -> RequestOutput:
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    *_, last = [output async for output in engine.generate(prompt, params, request_id)]
    assert last.finished
    return last


async def answers(engine: AsyncLLM, prompts: list[list[int]] = PROMPTS) -> list[list[int]]:
    """All prompts at once, as token ids."""
    outputs = await asyncio.gather(*(last_output(engine, prompt, str(i)) for i, prompt in enumerate(prompts)))
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 16, "max_num_seqs": 3},
        {"max_num_batched_tokens": 33, "max_num_seqs": 5, "block_size": 4, "enable_prefix_caching": False},
        {"distributed_executor_backend": "mp"},
    ],
    ids=["batched", "chunked", "no-prefix-cache", "worker-process"],
)
async def test_the_tiny_model(make_engine: MakeEngine, tiny_answers: list[list[int]], options: dict[str, Any]) -> None:
    engine = make_engine(**({"distributed_executor_backend": "uni", "dtype": "float64"} | options))
    assert await answers(engine) == tiny_answers


async def test_prefix_hits(make_engine: MakeEngine, tiny_answers: list[list[int]]) -> None:
    engine = make_engine(distributed_executor_backend="uni", dtype="float64", block_size=4)
    await last_output(engine, SHARED_START, "first", max_tokens=1)
    output = await last_output(engine, PROMPTS[5], "second")
    assert output.num_cached_tokens == 48
    assert output.outputs[0].token_ids == tiny_answers[5]
    again = await last_output(engine, SHARED_START, "third")
    assert again.num_cached_tokens == 44  # the last token must be computed, and blocks are shared whole
    assert again.outputs[0].token_ids == tiny_answers[7]
    assert await answers(engine) == tiny_answers


async def test_preemption(make_engine: MakeEngine, tiny_answers: list[list[int]], tmp_path: Path) -> None:
    engine = make_engine(
        distributed_executor_backend="uni",
        dtype="float64",
        block_size=4,
        num_gpu_blocks_override=60,
        max_model_len=200,
        max_num_batched_tokens=64,
        max_num_seqs=8,
        trace_level=1,
        trace_dir=str(tmp_path / "run"),
    )
    assert await answers(engine) == tiny_answers
    engine.shutdown()
    assert sum(len(step.preempted) for step in load_run(tmp_path / "run").steps) > 0


async def test_smollm2(make_engine: MakeEngine, smollm2_path: Path) -> None:
    engine = make_engine(model=str(smollm2_path), distributed_executor_backend="uni", dtype="float32", max_model_len=512)
    prompts = ["The capital of France is", "def fibonacci(n):", [{"role": "user", "content": "Why is the sky blue?"}]]
    outputs = await asyncio.gather(*(last_output(engine, prompt, str(i), 16) for i, prompt in enumerate(prompts)))
    engine.shutdown()
    generate = reference(smollm2_path, "float32")
    for output in outputs:
        assert output.prompt_token_ids is not None
        assert output.outputs[0].token_ids == generate(output.prompt_token_ids, 16)
