"""`trace check` raises no false alarm: whatever kind of output, whoever leaves, whoever ends it, whenever the level changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.flow.conftest import MakeEngine
from vllm_lite import AsyncLLM, RequestOutputKind, SamplingParams, StreamingInput
from vllm_lite.tracing.check import check_run
from vllm_lite.tracing.control_page import ControlPage
from vllm_lite.tracing.journey.load import load_run


async def read(engine: AsyncLLM, name: str, params: SamplingParams, leave_after: int | None, began: asyncio.Event) -> None:
    """Take what comes, with a question to the engine core after each so that letters are stapled; go after so many outputs."""
    stream = engine.generate(list(b"somewhere"), params, name)
    num_outputs = 0
    async for _ in stream:
        num_outputs += 1
        began.set()
        if num_outputs == leave_after:
            break
        await engine.is_sleeping()
    await stream.aclose()


def start(
    engine: AsyncLLM, max_tokens: int, leave_after: int | None = None, began: asyncio.Event | None = None
) -> list[asyncio.Task[None]]:
    """Callers of every kind, for one answer and for three; `began`: one of them has something."""
    return [
        asyncio.create_task(
            read(
                engine,
                f"{kind.name}-{n}-{leave_after}",
                SamplingParams(n=n, max_tokens=max_tokens, ignore_eos=True, output_kind=kind),
                leave_after,
                began or asyncio.Event(),
            )
        )
        for kind in RequestOutputKind
        for n in (1, 3)
    ]


def broken(run_dir: Path) -> list[str]:
    return [failure for finding in check_run(load_run(run_dir)) for failure in finding.failures]


@pytest.mark.parametrize("level", [1, 2, 3])
async def test_every_kind_of_output_and_callers_that_leave(make_engine: MakeEngine, tmp_path: Path, level: int) -> None:
    engine = make_engine(trace_level=level, trace_dir=str(tmp_path / "run"))
    await asyncio.gather(*start(engine, 20), *start(engine, 20, leave_after=2))
    engine.shutdown()
    assert broken(tmp_path / "run") == []


@pytest.mark.parametrize("how", ["pause", "shutdown"])
async def test_requests_that_nobody_aborts_by_a_message(make_engine: MakeEngine, tmp_path: Path, how: str) -> None:
    engine = make_engine(trace_level=3, trace_dir=str(tmp_path / "run"), additional_config={"toy_step_time": 0.005})
    began = asyncio.Event()
    callers = start(engine, 400, began=began)
    await began.wait()
    if how == "pause":
        await engine.pause_generation(mode="abort")
    engine.shutdown()
    await asyncio.gather(*callers, return_exceptions=True)
    assert broken(tmp_path / "run") == []


@pytest.mark.parametrize("levels", [(3, 1), (3, 0), (3, 0, 3), (1, 3), (0, 3)])
async def test_levels_that_change_while_requests_run(make_engine: MakeEngine, tmp_path: Path, levels: tuple[int, ...]) -> None:
    engine = make_engine(trace_level=3, trace_dir=str(tmp_path / "run"), additional_config={"toy_step_time": 0.002})
    page = ControlPage.open(tmp_path / "run")
    callers = []
    for number, page.level in enumerate(levels):
        began = asyncio.Event()
        callers += start(engine, 40, leave_after=30 + number, began=began)
        await began.wait()
    await asyncio.gather(*callers)
    page.close()
    engine.shutdown()
    assert broken(tmp_path / "run") == []


async def test_a_session_of_no_parts(make_engine: MakeEngine, tmp_path: Path) -> None:
    async def parts() -> AsyncGenerator[StreamingInput, None]:
        for part in list[StreamingInput]():
            yield part

    engine = make_engine(trace_level=2, trace_dir=str(tmp_path / "run"))
    params = SamplingParams(output_kind=RequestOutputKind.DELTA)
    assert [output async for output in engine.generate(parts(), params, "empty")] == []
    engine.shutdown()
    assert broken(tmp_path / "run") == []
