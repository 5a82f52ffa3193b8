"""An interpreter that ends without `shutdown()`, as a notebook's does, ends in order and takes the engine with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SESSION = """
import asyncio, sys
from vllm_lite import AsyncEngineArgs, AsyncLLM, SamplingParams
loop = asyncio.new_event_loop()
async def make():
    global engine
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=sys.argv[1], distributed_executor_backend="toy"))
async def ask():
    async for output in engine.generate([1, 2, 3], SamplingParams(max_tokens=4), "r"):
        pass
    print(len(output.outputs[0].token_ids))
loop.run_until_complete(make())
if "ask" in sys.argv:
    loop.run_until_complete(ask())
"""


@pytest.mark.parametrize(("asked", "printed"), [("ask", "4\n"), ("no", "")])
def test_an_engine_nobody_shut_down(tiny_model_path: Path, tmp_path: Path, asked: str, printed: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SESSION, str(tiny_model_path), asked],
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, printed, "")
