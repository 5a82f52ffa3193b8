"""Edges that only whole engines show."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.flow.conftest import MakeEngine
from vllm_lite import AsyncLLM, SamplingParams
from vllm_lite.engine_core.executor.toy import expected_tokens
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.journey.load import load_run

PROMPT = list(b"somewhere")


async def tokens_of(engine: AsyncLLM, request_id: str, max_tokens: int = 12, rank: int | None = None) -> list[int]:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    *_, last = [output async for output in engine.generate(PROMPT, params, request_id, data_parallel_rank=rank)]
    assert last.outputs[0].finish_reason == "length"
    return last.outputs[0].token_ids


async def test_x1_x3_engine_cores_run_on_their_own(make_engine: MakeEngine, tmp_path: Path) -> None:
    """The last one is asked first and answers; the other one is never made to run along."""
    engine = make_engine(data_parallel_size=2, trace_level=1, trace_steps="all", trace_dir=str(tmp_path / "run"))
    answers = await asyncio.gather(*(tokens_of(engine, str(number), rank=1) for number in range(3)))
    assert answers == [expected_tokens(PROMPT, 12)] * 3
    engine.shutdown()
    run = load_run(tmp_path / "run")
    assert {post.engine_index for journey in run.requests for post in journey.posts} == {1}
    assert len({step.process.pid for step in run.steps}) == 1


@pytest.mark.parametrize("prompt", ["", [], [""], [[]]])
async def test_p4_an_empty_prompt(make_engine: MakeEngine, prompt: object) -> None:
    engine = make_engine()
    with pytest.raises(VLLMValidationError, match=r"^(prompt|messages\[0\]) must be "):
        await anext(engine.generate(prompt, SamplingParams(), "bad"))  # type: ignore[arg-type]
    assert await tokens_of(engine, "good") == expected_tokens(PROMPT, 12)


async def test_p7_more_tokens_than_there_is_room(make_engine: MakeEngine) -> None:
    engine = make_engine(max_model_len=32)
    assert await tokens_of(engine, "huge", max_tokens=10**9) == expected_tokens(PROMPT, 32 - len(PROMPT))
