"""Two front ends on two engine cores, each in a process of its own: nobody meddles with the other, whoever dies."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.flow.conftest import all_gone, engine_processes
from tests.flow.front_end import COUNT, answer, answers, begin, calls, figure, prompt
from vllm_lite import AsyncEngineArgs, AsyncLLM, EngineDeadError, SamplingParams
from vllm_lite.engine_core.executor.toy import expected_tokens
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.frontend.core_client import launch_core_engines
from vllm_lite.metrics.loggers import PrometheusStatLogger
from vllm_lite.tracing.check import check_run
from vllm_lite.tracing.journey.load import load_run

ROOT = Path(__file__).parents[2]
SHORT_ANSWERS = [expected_tokens(prompt(number), 20) for number in range(COUNT)]


class Telling(PrometheusStatLogger):
    """Says when there are new figures."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.told = asyncio.Event()

    def record(self, *args: Any) -> None:
        super().record(*args)
        self.told.set()


class Pair:
    """Front end 0, here, and front end 1, a child; `pids` are the engine cores'."""

    def __init__(self, options: dict[str, Any], places: list[dict[str, Any]]) -> None:
        command = [sys.executable, "-m", "tests.flow.front_end", json.dumps(options), json.dumps(places[1])]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.here = AsyncLLM.from_vllm_config(
            AsyncEngineArgs(**options).create_engine_config(), stat_loggers=[Telling], **places[0]
        )
        self.pids: list[int] = []

    async def tell(self, word: str) -> Any:
        """Let the child do something; what it says of it."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        if word:
            self.child.stdin.write(f"{word}\n")
            self.child.stdin.flush()
        return json.loads(await asyncio.to_thread(self.child.stdout.readline))

    def close(self) -> None:
        self.here.shutdown()
        self.child.kill()
        self.child.communicate()


@pytest.fixture
async def pair(tiny_model_path: Path, tmp_path: Path) -> AsyncIterator[Pair]:
    options = {
        "model": str(tiny_model_path),
        "distributed_executor_backend": "toy",
        "data_parallel_size": 2,
        "trace_level": 2,
        "trace_dir": str(tmp_path / "run"),
        "additional_config": {"toy_step_time": 0.002},
    }
    with launch_core_engines(AsyncEngineArgs(**options).create_engine_config(), 2) as places:
        family = engine_processes()
        assert len(family) == 3  # two engine cores and the coordinator
        folder = Path(places[0]["client_addresses"]["input_address"].removeprefix("ipc://")).parent
        made = Pair(options, places)
        try:
            made.pids = await made.tell("")
            yield made
        finally:
            made.close()
    assert all_gone(family)
    assert not folder.exists()


def broken(run_dir: Path) -> list[str]:
    return [failure for finding in check_run(load_run(run_dir)) for failure in finding.failures]


async def test_answers_calls_and_figures_are_each_ones_own(pair: Pair, tmp_path: Path) -> None:
    async with asyncio.timeout(30):
        here, there = await asyncio.gather(answers(pair.here), pair.tell("answers"))
        assert here == there == SHORT_ANSWERS
        here, there = await asyncio.gather(calls(pair.here), pair.tell("calls"))
    assert here == [[False, False]] * 30
    assert there == [[["generate", "embed"]] * 2] * 30
    ours = [figure(pair.here, "generation_tokens_total", index) for index in range(2)]
    theirs = await pair.tell("generated")
    assert sum(map(float, [*map(str, ours), *theirs])) == 2 * COUNT * 20
    assert (
        min(float(str(one)) + other for one, other in zip(ours, theirs, strict=True)) >= COUNT / 2 * 20
    )  # both had their share
    assert pair.here.vllm_config.cache_config.num_gpu_blocks == sum(core.num_gpu_blocks for core in pair.here.engine_core.ready)
    pair.here.shutdown()
    pair.child.communicate("\n")
    assert pair.child.returncode == 0
    assert broken(tmp_path / "run") == []
    assert {process.role for process in load_run(tmp_path / "run").processes} >= {"frontend", "engine-core"}


async def test_a_front_end_is_killed(pair: Pair, tmp_path: Path) -> None:
    (mine,) = await begin(pair.here, 1)
    assert await pair.tell("begin") == 4
    await running(pair.here, 5)
    pair.child.send_signal(signal.SIGKILL)
    await running(pair.here, 1)  # the engine cores have let its requests go
    mine.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await mine
    await running(pair.here, 0)
    assert await answers(pair.here) == SHORT_ANSWERS
    assert await pair.here.reset_prefix_cache() is True  # nobody holds a block
    pair.here.shutdown()
    assert broken(tmp_path / "run") == []


async def running(engine: AsyncLLM, count: int) -> None:
    """Until so many requests run in all engine cores together, whoever's they are."""
    assert engine.logger_manager is not None
    figures = engine.logger_manager.prometheus
    assert isinstance(figures, Telling)
    async with asyncio.timeout(20):
        while sum(figure(engine, "num_requests_running", index) or 0 for index in range(2)) != count:
            figures.told.clear()
            await figures.told.wait()


async def test_an_engine_core_is_killed(pair: Pair) -> None:
    mine = await begin(pair.here, 4)
    assert await pair.tell("begin") == 4
    os.kill(pair.pids[1], signal.SIGKILL)
    ended = await asyncio.wait_for(asyncio.gather(*mine, return_exceptions=True), 20)
    assert [type(error) for error in ended] == [EngineDeadError] * 4
    # The other one is killed next, and a slow front end may see both at once.
    words = {f"engine core {index} (pid {pid}) has ended" for index, pid in enumerate(pair.pids)}
    theirs = await pair.tell("ends")
    assert len(theirs) == 4
    assert {*theirs, *map(str, ended)} <= words
    assert pair.here.errored
    assert pair.here.engine_core.dead_error is not None
    assert pair.here.engine_core.dead_error.engine_index in (0, 1)
    with pytest.raises(EngineDeadError, match=r"engine core \d"):
        await pair.here.check_health()


async def test_the_launcher_ends(tiny_model_path: Path) -> None:
    """Requests of front ends that are still there end in order, as when an engine is told to end; then the engine is dead."""
    args = AsyncEngineArgs(model=str(tiny_model_path), distributed_executor_backend="toy", max_model_len=4096)
    config = args.create_engine_config()
    with launch_core_engines(config, 2) as places:
        engine = AsyncLLM.from_vllm_config(config, **places[0])
        with pytest.raises(VLLMValidationError, match="client_addresses must be free"):
            AsyncLLM.from_vllm_config(config, **places[0])
        with pytest.raises(VLLMValidationError, match="executor_class must be None"):
            AsyncLLM(config, executor_class=AsyncLLM, **places[1])
        for name, value in (("client_index", 0), ("client_count", 3)):
            with pytest.raises(VLLMValidationError, match=f"{name} must be [12]: a front end joins with"):
                AsyncLLM.from_vllm_config(config, **(places[1] | {name: value}))
        two_cores = dataclasses.replace(args, data_parallel_size=2).create_engine_config()
        with pytest.raises(VLLMValidationError, match=r"engine_cores must be \[0\]: .* got \[0, 1\]"):
            AsyncLLM.from_vllm_config(two_cores, **places[1])
        (task,) = await begin(engine, 1)
    await asyncio.wait_for(task, 20)
    while not engine.errored:  # noqa: ASYNC110
        await asyncio.sleep(0)
    with pytest.raises(EngineDeadError, match=r"engine core 0 \(pid \d+\) has ended"):
        await answer(engine, 1)
    engine.shutdown()
    assert engine_processes() == []


async def test_an_executor_of_ones_own(tiny_model_path: Path) -> None:
    from tests.flow.own_executor import OwnExecutor

    config = AsyncEngineArgs(model=str(tiny_model_path)).create_engine_config()
    engine = AsyncLLM(config, executor_class=OwnExecutor)
    try:
        assert engine.engine_core.ready[0].executor == "tests.flow.own_executor:OwnExecutor"
        params = SamplingParams(max_tokens=5, ignore_eos=True)
        with pytest.raises(RuntimeError, match="SpeechlessError, and saying why failed: ZeroDivisionError"):
            await engine.collective_rpc("fail_speechless")
        (*_, last) = [output async for output in engine.generate([1, 2, 3], params, "r")]
        assert last.outputs[0].token_ids == expected_tokens([1, 2, 3], 5)
    finally:
        engine.shutdown()
