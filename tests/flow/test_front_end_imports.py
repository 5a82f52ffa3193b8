from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, sys
from vllm_lite import AsyncEngineArgs, AsyncLLM, SamplingParams

async def main():
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=sys.argv[1], trace_level=3, trace_dir=sys.argv[2]))
    async for output in engine.generate([{"role": "user", "content": "hi"}], SamplingParams(max_tokens=4, seed=1), "1"):
        pass
    engine.shutdown()
    print(len(output.outputs[0].token_ids), output.prompt)

asyncio.run(main())
heavy = ("torch", "grpc", "triton", "safetensors.torch")
print([name for name in sys.modules if name.startswith(heavy)])
"""


def test_an_answered_chat_request_needs_no_torch_in_the_front_end(tiny_model_path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tiny_model_path), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4 <|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n\n[]\n"
