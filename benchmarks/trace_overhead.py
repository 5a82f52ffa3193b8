"""What tracing costs: levels 1 and 3, and requests that are not sampled, against tracing that is off.

    python benchmarks/trace_overhead.py             # CPU time of the event loop per token, as fast as it goes
    python benchmarks/trace_overhead.py --rate 12800    # the same at so many tokens a second, and how late the loop is
    python benchmarks/trace_overhead.py --model     # tokens a second of a whole engine with a real worker, on one core

The first two sort the bags of benchmarks/frontend.py; every request is sampled and every bag's step traced, but for
"unsampled", where the callers' headers say no. What is compared takes turns, a few bags each. CPU time is compared with that
of the turn beside it which had the same bags and no tracing: the median over all rounds, then the mean over all bags. The third
turns the level of one engine up and down, from one batch to the next. Exit code 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import operator
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.engine import make_batch
from benchmarks.engine_child import cpu_seconds
from benchmarks.frontend import Engine, Kind, measure
from vllm_lite import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams
from vllm_lite.config.model_files import DEFAULT_MODEL, resolve_model
from vllm_lite.tracing.live import switched

KINDS = {"off": Kind(), "level 1": Kind(1), "level 3": Kind(3), "unsampled": Kind(3, sampled=False)}
BEAT_S = 0.002


class Line(NamedTuple):
    """A figure and what it may be: at most `bar`, or at least where `least`."""

    what: str
    figure: float
    bar: float
    unit: str
    least: bool = False

    @property
    def missed(self) -> bool:
        return self.figure < self.bar if self.least else self.figure > self.bar


def added(rounds: Sequence[Sequence[float]], off: Sequence[Sequence[float]]) -> float:
    """For each block of bags the median of the rounds' differences, whose turns were neighbours; of these the mean."""
    blocks = zip(zip(*rounds, strict=True), zip(*off, strict=True), strict=True)
    return statistics.mean(statistics.median(map(operator.sub, values, base)) for values, base in blocks)


async def per_token(options: argparse.Namespace) -> list[Line]:
    """CPU microseconds per token, as fast as it goes."""
    figures = await measure(KINDS, options.rounds, options.requests, options.steps)
    off = figures["off"]
    for name, rounds in figures.items():
        print(f"{name:10} {statistics.median(map(statistics.mean, rounds)):5.2f} us/token  {added(rounds, off):+.3f}")
    bars = {"level 1": 0.15, "level 3": 0.5, "unsampled": 0.05}
    return [Line(f"{name}, added per token", added(figures[name], off), bar, "us") for name, bar in bars.items()]


async def at_rate(options: argparse.Namespace) -> list[Line]:
    """Percent of a core, and how late the loop is at the worst of a hundred wakings (ms)."""
    kinds = {name: KINDS[name] for name in ("off", "level 1", "level 3")}
    beats: dict[Kind, list[float]] = {kind: [] for kind in kinds.values()}

    def make(folder: str, kind: Kind) -> Paced:
        return Paced(folder, kind, options.rate / options.requests, beats[kind])

    figures = await measure(kinds, options.rounds, options.requests, options.steps, make)
    cores = {name: [[us * options.rate / 1e4 for us in blocks] for blocks in rounds] for name, rounds in figures.items()}
    lags = {name: 1000 * statistics.quantiles(beats[kind], n=100)[-1] for name, kind in kinds.items()}
    for name, rounds in cores.items():
        print(f"{name:10} {statistics.median(map(statistics.mean, rounds)):5.2f} % of a core, p99 lag {lags[name]:5.2f} ms")
    lines = []
    for name, bar in (("level 1", 1.0), ("level 3", 2.0)):
        lines.append(Line(f"{name}, added", added(cores[name], cores["off"]), bar, "% of a core"))
        lines.append(Line(f"{name}, p99 lag of the loop, added", lags[name] - lags["off"], 2.0, "ms"))
    return lines


class Paced(Engine):
    """One bag after the other, each at its time, and a heart that notes in `lags` how late the loop is (s)."""

    def __init__(self, folder: str, kind: Kind, bags_per_s: float, lags: list[float]) -> None:
        super().__init__(folder, kind)
        self._period, self._lags = 1 / bags_per_s, lags

    async def serve(self, start: int, stop: int) -> None:
        heart, due = asyncio.create_task(beat(self._lags)), time.monotonic()
        for number in range(start, stop):
            await asyncio.sleep(due - time.monotonic())
            await super().serve(number, number + 1)
            due += self._period
        heart.cancel()


async def beat(lags: list[float]) -> None:
    """Wake up every so often and note how late that was."""
    while True:
        due = time.monotonic() + BEAT_S
        await asyncio.sleep(BEAT_S)
        lags.append(time.monotonic() - due)


async def whole_engine(options: argparse.Namespace) -> list[Line]:
    """Tokens a second of level 3 over those of off, in percent."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the engine core inherits it: nothing is hidden on another core
    os.environ["OMP_NUM_THREADS"] = "1"
    found: dict[int, list[tuple[float, float]]] = {0: [], 3: []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        args = AsyncEngineArgs(
            str(resolve_model(options.model)), max_model_len=512, kv_cache_memory_bytes=1 << 28, trace_dir=str(path)
        )
        llm = AsyncLLM.from_engine_args(args)
        for number in range(options.rounds + 1):
            for level in (0, 3) if number % 2 else (3, 0):
                with switched(path, level):
                    figures = await batch(llm, number, options.batch)
                if number:
                    found[level].append(figures)
        llm.shutdown()
    wall, cpu = ([[each[i] for each in found[level]] for level in (0, 3)] for i in (0, 1))
    ratios = [statistics.median(100 * base / value for base, value in zip(*each, strict=True)) for each in (wall, cpu)]
    rates = [options.batch * 32 / statistics.median(each) for each in wall]
    print(f"off {rates[0]:.1f} tokens/s, level 3 {rates[1]:.1f} tokens/s; by CPU time level 3 is at {ratios[1]:.1f} % of off")
    return [Line("level 3, tokens a second against off", ratios[0], 97.0, "%", least=True)]


async def batch(llm: AsyncLLM, number: int, size: int) -> tuple[float, float]:
    """Seconds that a batch takes, and CPU seconds of all processes. Both levels of a round have the same prompts."""

    async def answer(name: str, prompt: list[int], count: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
        async for _ in llm.generate({"prompt_token_ids": prompt}, params, name):
            pass

    await llm.reset_prefix_cache()
    prompts = make_batch(str(size), number, llm.model_config.vocab_size)
    cpu, wall = cpu_seconds(), time.perf_counter()
    await asyncio.gather(*(answer(str(i), *each) for i, each in enumerate(prompts)))
    return time.perf_counter() - wall, cpu_seconds() - cpu


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--rate", type=float, help="tokens a second")
    mode.add_argument("--model", nargs="?", const=DEFAULT_MODEL, help="of the whole engine")
    parser.add_argument("--requests", type=int, default=256, help="at once, of the first two")
    parser.add_argument("--steps", type=int, default=200, help="tokens of each of them")
    parser.add_argument("--batch", type=int, default=16, help="requests at once, of the whole engine: 64 tokens in, 32 out")
    parser.add_argument("--rounds", type=int, help="that count")
    options = parser.parse_args()
    run, rounds = (whole_engine, 12) if options.model else (at_rate, 7) if options.rate else (per_token, 15)
    options.rounds = options.rounds or rounds
    print(f"load average {os.getloadavg()[0]:.1f}, {options.rounds} rounds")
    lines = asyncio.run(run(options))
    for line in lines:
        bar = f"{'>=' if line.least else '<='} {line.bar:g} {line.unit}{', missed' if line.missed else ''}"
        print(f"{line.what:42} {line.figure:7.3f} {line.unit}   ({bar})")
    return int(any(line.missed for line in lines))


if __name__ == "__main__":
    sys.exit(main())
