"""Engines for the tests across processes. Each test ends with no process of its engines left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from vllm_lite import AsyncEngineArgs, AsyncLLM

MakeEngine = Callable[..., AsyncLLM]


def engine_processes(parent: psutil.Process | None = None) -> list[psutil.Process]:
    """The processes under `parent` (this one by default) that are ours, whichever generation."""
    children = (parent or psutil.Process()).children(recursive=True)
    return [child for child in children if is_ours(child)]


def is_ours(process: psutil.Process) -> bool:
    try:
        return any(word.startswith("vllm_lite") for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def all_gone(processes: list[psutil.Process], seconds: float = 30.0) -> bool:
    """True once none of `processes` runs any more; a zombie that nobody has waited for yet counts as gone."""
    _, living = psutil.wait_procs(processes, timeout=seconds)
    return not any(runs(process) for process in living)


def runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # waited for just now
        return False


@pytest.fixture
async def make_engine(tiny_model_path: Path) -> AsyncIterator[MakeEngine]:
    """Starts an AsyncLLM of the tiny model with the given options: the toy executor unless they say otherwise."""
    engines: list[AsyncLLM] = []

    def make(**options: Any) -> AsyncLLM:
        defaults: dict[str, Any] = {"model": str(tiny_model_path), "distributed_executor_backend": "toy"}
        engines.append(AsyncLLM.from_engine_args(AsyncEngineArgs(**(defaults | options))))
        return engines[-1]

    yield make
    for engine in engines:
        engine.shutdown()
    assert all_gone(engine_processes())
