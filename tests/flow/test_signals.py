"""Nothing outlives the front end, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.flow.conftest import all_gone, engine_processes

PROGRAM = """
import asyncio, sys
from vllm_lite import AsyncEngineArgs, AsyncLLM, SamplingParams

async def read(engine):
    answer = engine.generate("a long answer", SamplingParams(temperature=0, max_tokens=3000, ignore_eos=True), "1")
    await anext(answer)
    print("answering", flush=True)
    async for output in answer:
        pass

args = AsyncEngineArgs(model=sys.argv[1], distributed_executor_backend=sys.argv[2], trace_level=2, trace_dir=sys.argv[3])
engine = AsyncLLM.from_engine_args(args)
try:
    asyncio.run(read(engine))
finally:
    engine.shutdown()
"""


@contextmanager
def answering(model: Path, backend: str, run_dir: Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A program in a process group of its own, as a terminal starts it, in the middle of an answer; and its children."""
    command = [sys.executable, "-c", PROGRAM, str(model), backend, str(run_dir)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "answering\n"
            yield program, engine_processes(psutil.Process(program.pid))
        finally:
            program.kill()


@pytest.mark.parametrize("backend", ["toy", "uni", "mp"])
def test_the_front_end_is_killed(tiny_model_path: Path, tmp_path: Path, backend: str) -> None:
    with answering(tiny_model_path, backend, tmp_path / "run") as (program, children):
        assert len(children) >= (2 if backend == "mp" else 1)
        program.send_signal(signal.SIGKILL)
        program.wait()
        assert all_gone(children)


@pytest.mark.parametrize("backend", ["toy", "mp"])
def test_control_c(tiny_model_path: Path, tmp_path: Path, backend: str) -> None:
    with answering(tiny_model_path, backend, tmp_path / "run") as (program, children):
        os.killpg(program.pid, signal.SIGINT)
        _, words = program.communicate(timeout=60)
        assert program.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
        assert words.rstrip().endswith("KeyboardInterrupt")
        assert all_gone(children)


def test_control_c_while_the_engine_starts(tiny_model_path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tiny_model_path), "mp", str(tmp_path / "run")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        while not (children := engine_processes(psutil.Process(program.pid))):
            assert program.poll() is None
        os.killpg(program.pid, signal.SIGINT)
        program.communicate(timeout=60)
        assert program.returncode != 0
        assert all_gone(children)
