"""Whichever process dies, and whenever: every caller is told, nothing is left, and the spools hold what was received."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import psutil
import pytest

from tests.flow.conftest import MakeEngine, all_gone, engine_processes
from vllm_lite import AsyncLLM, EngineDeadError, RequestOutputKind, SamplingParams
from vllm_lite.tracing.journey.load import load_run
from vllm_lite.tracing.journey.model import LATE, Run

CALLERS = 6
LONG = SamplingParams(temperature=0, max_tokens=2000, ignore_eos=True, output_kind=RequestOutputKind.DELTA)


class Killer:
    """Kills a process when the callers together have received `after` letters."""

    def __init__(self, victim: psutil.Process, after: int) -> None:
        self.victim = victim
        self.after = after

    def letter_received(self) -> None:
        self.after -= 1
        if self.after == 0:
            self.victim.send_signal(signal.SIGKILL)


async def caller(engine: AsyncLLM, name: str, killer: Killer) -> int:
    """Read until the engine dies; returns the tokens received."""
    tokens = 0
    try:
        async for output in engine.generate(f"prompt of {name}", LONG, name):
            tokens += len(output.outputs[0].token_ids)
            killer.letter_received()
    except EngineDeadError:
        return tokens
    raise AssertionError("the answer ended before the engine was killed")


async def die(engine: AsyncLLM, killer: Killer) -> dict[str, int]:
    """Tokens that each caller received before its engine was killed under it. Checks what holds after every death."""
    family = engine_processes()
    names = [f"caller-{number}" for number in range(CALLERS)]
    async with asyncio.timeout(30):
        received = await asyncio.gather(*(caller(engine, name, killer) for name in names))
    assert engine.errored
    with pytest.raises(EngineDeadError):
        await anext(engine.generate("too late", LONG, "late"))
    with pytest.raises(EngineDeadError):
        await engine.add_request("later", "too late", LONG)
    engine.shutdown()
    assert await asyncio.to_thread(all_gone, family)
    return dict(zip(names, received, strict=True))


def check_spools(run: Run, received: dict[str, int]) -> None:
    """The front end's spool has every token that a caller received, the core's every bag but at most the last."""
    kept = {
        journey.accept.external_id: sum(letter.tokens for letter in journey.letters if letter.fate != LATE)
        for journey in run.requests
    }
    assert {name: kept[name] >= tokens for name, tokens in received.items()} == dict.fromkeys(received, True)
    token_bags = [bag for bag in run.bags if bag.letters]
    assert all(bag.step is not None and bag.send is not None for bag in token_bags[:-1])
    assert {request.close.outcome for request in run.requests if request.close} == {"engine_dead"}
    assert all(request.close for request in run.requests)


def process_named(module: str) -> psutil.Process:
    (found,) = (process for process in engine_processes() if module in process.cmdline())
    return found


@pytest.mark.parametrize(
    ("backend", "victim"),
    [
        ("uni", "vllm_lite.engine_core.proc"),
        ("mp", "vllm_lite.engine_core.proc"),
        ("mp", "vllm_lite.worker.proc"),
    ],
)
async def test_the_real_worker(make_engine: MakeEngine, tmp_path: Path, backend: str, victim: str) -> None:
    engine = make_engine(distributed_executor_backend=backend, trace_level=2, trace_dir=str(tmp_path / "run"))
    killer = Killer(process_named(victim), after=40)
    received = await die(engine, killer)
    check_spools(load_run(tmp_path / "run"), received)
