"""The engine core is killed at random moments: how soon do all callers know, and is any process left?

    python benchmarks/death.py [--moments 20] [--callers 16] [--model tiny] [--backend toy|uni|mp] [--seed 0]

Each moment is a new engine with long answers under way; between the first token and half a second later the engine core gets
SIGKILL. Measured: from the kill to the last caller's EngineDeadError, and the processes left five seconds after it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import signal
import statistics
import sys
import time

import psutil

from vllm_lite import AsyncEngineArgs, AsyncLLM, EngineDeadError, SamplingParams

TOLD_BAR_S = 1.0
LEFTOVER_AFTER_S = 5.0


async def caller(engine: AsyncLLM, number: int, first: asyncio.Event) -> float:
    """Read one long answer until the engine dies; returns the monotonic time at which this caller was told."""
    params = SamplingParams(temperature=0, max_tokens=1900, ignore_eos=True)
    try:
        async for _ in engine.generate(f"caller {number}", params, f"caller-{number}"):
            first.set()
    except EngineDeadError:
        return time.monotonic()
    raise AssertionError("the answer ended before the engine was killed")


def engine_core_of_this_process() -> psutil.Process:
    (core,) = (
        child for child in psutil.Process().children() if any("vllm_lite.engine_core" in word for word in child.cmdline())
    )
    return core


async def one_death(options: argparse.Namespace, delay: float) -> tuple[float, int]:
    """Seconds from the kill to the last caller's error, and the processes left."""
    args = AsyncEngineArgs(model=options.model, max_model_len=2048, distributed_executor_backend=options.backend)
    if options.backend == "toy":
        args.additional_config = {"toy_step_time": 0.002}
    engine = AsyncLLM.from_engine_args(args)
    first = asyncio.Event()
    callers = [asyncio.create_task(caller(engine, number, first)) for number in range(options.callers)]
    await first.wait()
    await asyncio.sleep(delay)
    core = engine_core_of_this_process()
    family = [core, *core.children(recursive=True)]
    killed = time.monotonic()
    core.send_signal(signal.SIGKILL)
    told = await asyncio.gather(*callers)
    engine.shutdown()
    _, left = await asyncio.to_thread(psutil.wait_procs, family, LEFTOVER_AFTER_S)
    return max(told) - killed, len(left)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--backend", default="toy", choices=("toy", "uni", "mp"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    moments = random.Random(options.seed)
    print(f"{os.cpu_count()} CPUs, Python {platform.python_version()}, {options.model}, {options.backend}")
    results = [asyncio.run(one_death(options, moments.uniform(0, 0.5))) for _ in range(options.moments)]
    told, left = [seconds for seconds, _ in results], sum(count for _, count in results)
    print(
        f"{options.moments} deaths, {options.callers} callers each: all told after {statistics.median(told) * 1e3:.1f} ms "
        f"(median), {max(told) * 1e3:.1f} ms (worst; bar {TOLD_BAR_S * 1e3:.0f} ms); processes left after "
        f"{LEFTOVER_AFTER_S:.0f} s: {left}"
    )
    return 0 if max(told) <= TOLD_BAR_S and left == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
