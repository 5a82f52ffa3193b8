"""Requests in flight may end before their engine does, where it was given the time."""

from __future__ import annotations

import asyncio

import pytest

from tests.flow.conftest import MakeEngine
from vllm_lite import AsyncLLM, EngineDeadError, SamplingParams
from vllm_lite.engine_core.executor.toy import expected_tokens

PROMPT = list(b"the last one")


async def reader(engine: AsyncLLM, begun: asyncio.Event, count: int) -> list[int]:
    tokens: list[int] = []
    async for output in engine.generate(PROMPT, SamplingParams(max_tokens=count, ignore_eos=True), "r"):
        begun.set()
        tokens = output.outputs[0].token_ids
    return tokens


@pytest.mark.parametrize(("seconds", "whole"), [(60.0, True), (0.0, False)])
async def test_from_another_thread(make_engine: MakeEngine, seconds: float, whole: bool) -> None:
    engine = make_engine(shutdown_timeout=seconds, additional_config={"toy_step_time": 0.005})
    begun = asyncio.Event()
    reading = asyncio.create_task(reader(engine, begun, 60))
    await begun.wait()
    await asyncio.to_thread(engine.shutdown)
    if whole:
        assert await reading == expected_tokens(PROMPT, 60)
    else:
        with pytest.raises(EngineDeadError, match="was shut down"):
            await reading
