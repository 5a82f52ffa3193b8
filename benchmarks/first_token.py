"""Start an engine in this process's children, print the first token of one answer, and end. Used by startup.py.

    python benchmarks/first_token.py vllm_lite|vllm MODEL_FOLDER

The same program drives both engines, since their names are the same.
"""

from __future__ import annotations

import asyncio
import sys


async def first_token(package: str, model: str) -> None:
    if package == "vllm":
        from vllm import SamplingParams
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
    else:
        from vllm_lite import AsyncEngineArgs, AsyncLLM, SamplingParams

    args = AsyncEngineArgs(
        model=model, dtype="bfloat16", max_model_len=2048, enforce_eager=True, kv_cache_memory_bytes=256 * 1024 * 1024
    )
    engine = AsyncLLM.from_engine_args(args)
    async for output in engine.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=1), "first"):
        print("first token", output.outputs[0].token_ids[0], flush=True)
    engine.shutdown()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    asyncio.run(first_token(sys.argv[1], sys.argv[2]))
