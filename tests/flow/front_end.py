"""A front end of an engine that others share, as a process: told what to do by lines on stdin, it answers in JSON on stdout."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from vllm_lite import AsyncLLM, EngineDeadError, SamplingParams
from vllm_lite.engine_args import AsyncEngineArgs

COUNT = 12
SHORT = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=3000, ignore_eos=True)


def prompt(number: int) -> list[int]:
    return [number % 7, 2, 3]


async def answer(
    engine: AsyncLLM, number: int, params: SamplingParams = SHORT, begun: asyncio.Event | None = None
) -> list[int]:
    tokens: list[int] = []
    async for output in engine.generate(prompt(number), params, str(number)):  # both front ends use the same ids
        tokens = output.outputs[0].token_ids
        if begun is not None:
            begun.set()
    return tokens


async def answers(engine: AsyncLLM) -> list[list[int]]:
    return list(await asyncio.gather(*(answer(engine, number) for number in range(COUNT))))


async def begin(engine: AsyncLLM, count: int) -> list[asyncio.Task[list[int]]]:
    """Long requests, each of which has begun."""
    begun = [asyncio.Event() for _ in range(count)]
    tasks = [asyncio.create_task(answer(engine, number, LONG, event)) for number, event in enumerate(begun)]
    for event in begun:
        await event.wait()
    return tasks


async def calls(engine: AsyncLLM) -> list[Any]:
    """Utility calls; each front end makes another one, under the same numbers."""
    if engine.vllm_config.parallel_config.api_process_rank:
        return [await engine.engine_core.call_utility_all_async("get_supported_tasks") for _ in range(30)]
    return [await engine.engine_core.call_utility_all_async("is_scheduler_paused") for _ in range(30)]


def figure(engine: AsyncLLM, name: str, index: int) -> float | None:
    assert engine.logger_manager is not None
    rank = str(engine.vllm_config.parallel_config.api_process_rank)
    labels = {"model_name": engine.model_config.model, "engine": str(index), "client_index": rank}
    return engine.logger_manager.prometheus.registry.get_sample_value(f"vllm:{name}", labels)


async def serve(options: dict[str, Any], place: dict[str, Any]) -> None:
    engine = AsyncLLM.from_vllm_config(AsyncEngineArgs(**options).create_engine_config(), **place)
    tasks: list[asyncio.Task[list[int]]] = []
    say([ready.pid for ready in engine.engine_core.ready])
    while word := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if word == "answers":
            say(await answers(engine))
        elif word == "calls":
            say(await calls(engine))
        elif word == "generated":
            say([figure(engine, "generation_tokens_total", index) for index in range(2)])
        elif word == "begin":
            tasks = await begin(engine, 4)
            say(len(tasks))
        elif word == "ends":
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            say([str(error) for error in ended if isinstance(error, EngineDeadError)])
    engine.shutdown()


def say(value: Any) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1]), json.loads(sys.argv[2])))
