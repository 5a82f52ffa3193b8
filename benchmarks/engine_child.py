"""One engine that stays up and runs the batches it is told to. Started by engine.py.

    python benchmarks/engine_child.py vllm_lite|vllm|generate MODEL_FOLDER DTYPE

On standard input each line is a batch: a JSON list of [prompt token ids, number of tokens to generate]. The answer is a line
of JSON: `wall` and `cpu` seconds (of this process and all below it), `tokens` generated. The first line says that the engine is
up.
The same code drives both engines, since their names are the same; `generate` is transformers' own, on one padded batch.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psutil

Batch = list[tuple[list[int], int]]
Run = Callable[[Batch], Awaitable[int]]


def async_llm(package: str, model: str, dtype: str) -> Run:
    """Runs a batch on `package`'s AsyncLLM, every request a stream of its own, as a server would have it."""
    if package == "vllm":
        from vllm import SamplingParams
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.async_llm import AsyncLLM
    else:
        from vllm_lite import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams

    args = AsyncEngineArgs(model=model, dtype=dtype, max_model_len=2048, enforce_eager=True, kv_cache_memory_bytes=1 << 30)
    engine: Any = AsyncLLM.from_engine_args(args)
    numbers = iter(range(10**9))

    async def answer(prompt: list[int], count: int) -> int:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
        stream = engine.generate({"prompt_token_ids": prompt}, params, str(next(numbers)))
        return sum([len(output.outputs[0].token_ids) async for output in stream])

    async def run(batch: Batch) -> int:
        return sum(await asyncio.gather(*(answer(prompt, count) for prompt, count in batch)))

    return run


def generate(model: str, dtype: str) -> Run:
    """Runs a batch as transformers does: prompts padded on the left, everyone kept until the last has all its tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    module: Any = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
    module.generation_config.eos_token_id = None
    module.generation_config.pad_token_id = 0

    async def run(batch: Batch) -> int:
        width = max(len(prompt) for prompt, _ in batch)
        padded = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt, _ in batch])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _ in batch])
        most = max(count for _, count in batch)
        answers = module.generate(padded, attention_mask=mask, max_new_tokens=most, do_sample=False)
        assert answers.shape == (len(batch), width + most)
        return sum(count for _, count in batch)

    return run


def cpu_seconds() -> float:
    """CPU time of this process and of all processes below it, so far."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(each.user + each.system for each in times)


async def main(kind: str, model: str, dtype: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines print to standard output, too
    run = generate(model, dtype) if kind == "generate" else async_llm(kind, model, dtype)
    print("{}", file=answers, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        batch = json.loads(line)
        cpu, wall = cpu_seconds(), time.perf_counter()
        tokens = await run(batch)
        wall = time.perf_counter() - wall
        found = {"wall": wall, "cpu": cpu_seconds() - cpu, "tokens": tokens}
        print(json.dumps(found), file=answers, flush=True)
    for process in psutil.Process().children(recursive=True):
        process.kill()
    os._exit(0)  # nobody waits for a slow farewell


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
