"""Front-end CPU per output token: AsyncLLM's own output handler, OutputProcessor, mailboxes and `async for` over generate().

    python benchmarks/frontend.py [--peer SCRIPT --peer-python PYTHON]

256 requests, DELTA, 200 tokens each of real text. No engine core runs: a client hands out bags that were made before, so what
is timed is what the front end does between a decoded bag and the caller's hands. CPU time of the loop's thread, medians of
rounds; what is compared takes turns, some bags each, so that whatever else runs on the machine slows all alike.
With --peer another program's front end is measured between the rounds, by a script that prints "async ... us/tok" itself.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import re
import statistics
import subprocess
import tempfile
import time
import unittest.mock
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vllm_lite import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams
from vllm_lite.config.model_files import DEFAULT_MODEL, resolve_model
from vllm_lite.exceptions import EngineDeadError
from vllm_lite.frontend import async_llm
from vllm_lite.frontend.core_client import Bag, EngineCoreClient, Posted
from vllm_lite.tracing.context import SpanContext, new_span_id, new_trace_id
from vllm_lite.tracing.recorder import now_ns
from vllm_lite.wire.messages import (
    PROTOCOL_VERSION,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreReadyResponse,
    EngineCoreRequest,
    FinishReason,
)
from vllm_lite.wire.stats import SchedulerStats

BLOCK = 25  # bags of one engine before the next one has its turn
TEXT = (
    "The quick brown fox jumps over the lazy dog. In 1905 Albert Einstein published four papers; "
    "def f(x):\n    return x ** 2 + 1\n\nNaïve café, 日本語 テスト, emoji 😀 and numbers 3.14159. "
) * 40


class Kind(NamedTuple):
    """What is measured: a trace level, statistics or none, and whether the callers' headers ask for the requests' traces."""

    level: int = 0
    log_stats: bool = False
    sampled: bool = True


class Script(EngineCoreClient):
    """An engine core client whose bags were made before: one token for each request in each."""

    def __init__(self) -> None:
        self.ready = [
            EngineCoreReadyResponse(
                PROTOCOL_VERSION, 0, 1, 2048, 1000, 16, "float32", "cpu", 49152, "none", supported_tasks=["generate"]
            )
        ]
        self.added: list[str] = []
        self._bags: Iterator[Bag] = iter(())
        self._go, self._done = asyncio.Event(), asyncio.Event()

    async def hand_out(self, bags: Sequence[Bag]) -> None:
        """Until all of them are sorted and their letters read."""
        self._bags = iter(bags)
        self._done.clear()
        self._go.set()
        await self._done.wait()

    @property
    def dead_error(self) -> EngineDeadError | None:
        return None

    async def get_bag_async(self) -> Bag:
        await asyncio.sleep(0)  # as when the loop hears from the socket: readers have their turn before
        while (bag := next(self._bags, None)) is None:
            self._go.clear()
            self._done.set()
            await self._go.wait()
        return bag

    async def add_request_async(self, request: EngineCoreRequest) -> Posted:
        self.added.append(request.request_id)
        return Posted(0, 100)

    async def abort_requests_async(
        self, request_ids: Sequence[str], reason: str = "api", trace_headers: Mapping[str, str] | None = None
    ) -> None:
        raise AssertionError("nothing is given up here")

    async def call_utility_all_async(self, method: str, *args: Any) -> list[Any]:
        raise NotImplementedError(method)

    async def ping_async(self, seconds: float) -> None: ...

    def shutdown(self, timeout: float | None = None) -> None: ...


class Engine:
    """An AsyncLLM without an engine core, and what one round of it has cost."""

    def __init__(self, folder: str, kind: Kind) -> None:
        self.kind = kind
        self.client = client = Script()
        args = AsyncEngineArgs(
            model=str(resolve_model(DEFAULT_MODEL)), max_model_len=2048, trace_level=kind.level, trace_dir=folder
        )
        with unittest.mock.patch.object(async_llm, "make_async_mp_client", return_value=client):
            self.llm = AsyncLLM.from_vllm_config(args.create_engine_config(), disable_log_stats=not kind.log_stats)
        self.bags: list[Bag] = []
        self.cpu: list[float] = []  # seconds for a bag, in each block of them
        self.cpu_added = 0.0

    async def add(self, requests: int, steps: int) -> None:
        """So many callers, and the bags they wait for."""
        self.client.added.clear()
        start = time.thread_time()
        self._callers = [asyncio.create_task(self._read(str(i), steps)) for i in range(requests)]
        while len(self.client.added) < requests:
            await asyncio.sleep(0)
            if self._callers[0].done():
                await asyncio.gather(*self._callers)  # raises what went wrong
        self.cpu, self.cpu_added = [], time.thread_time() - start
        stream = self.llm.get_tokenizer().encode(TEXT, add_special_tokens=False)
        self.bags = make_bags(self.client.added, stream, steps, self.kind.level > 0 and self.kind.sampled)

    async def serve(self, start: int, stop: int) -> None:
        """These bags, by the clock of this thread's CPU time."""
        began = time.thread_time()
        await self.client.hand_out(self.bags[start:stop])
        self.cpu.append((time.thread_time() - began) / (stop - start))

    async def end(self) -> None:
        """Every caller has all its tokens."""
        for caller in self._callers:
            assert await caller == len(self.bags)

    async def _read(self, name: str, steps: int) -> int:
        params = SamplingParams(max_tokens=steps, output_kind=RequestOutputKind.DELTA)
        headers = (
            None if self.kind.sampled else {"traceparent": SpanContext(new_trace_id(), new_span_id(), False).traceparent()}
        )
        tokens = 0
        async for output in self.llm.generate([1] * 64, params, name, trace_headers=headers):
            tokens += len(output.outputs[0].token_ids)
        return tokens


def make_bags(request_ids: list[str], stream: list[int], steps: int, traced: bool) -> list[Bag]:
    rng = random.Random(0)
    starts = [rng.randrange(len(stream) - steps) for _ in request_ids]
    bags = []
    for step in range(steps):
        last = FinishReason.LENGTH if step == steps - 1 else None
        rows = [
            EngineCoreOutput(request_id, [stream[start + step]], finish_reason=last)
            for request_id, start in zip(request_ids, starts, strict=True)
        ]
        trace = SpanContext(new_trace_id(), new_span_id(), sampled=True).traceparent() if traced else None
        outputs = EngineCoreOutputs(
            outputs=rows, scheduler_stats=SchedulerStats(len(rows)), timestamp=1.0 + step, step_trace=trace
        )
        bags.append(Bag(outputs, now_ns(), now_ns(), 10_000))
    return bags


async def one_round(engines: Sequence[Engine], requests: int, steps: int) -> None:
    """Every engine serves as many requests, a few bags at a time, each being the first in its turn."""
    for engine in engines:
        await engine.add(requests, steps)
    gc.collect()
    gc.freeze()
    turns = list(engines)
    for start in range(0, steps, BLOCK):
        for engine in turns:
            await engine.serve(start, min(start + BLOCK, steps))
        turns.append(turns.pop(0))
    gc.unfreeze()
    for engine in engines:
        await engine.end()


async def measure(
    kinds: Mapping[str, Kind], rounds: int, requests: int, steps: int, make: Callable[[str, Kind], Engine] = Engine
) -> dict[str, list[list[float]]]:
    """CPU microseconds per token of each block in each round, by kind, after a round that does not count."""
    figures: dict[str, list[list[float]]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as folder:
        engines = {name: make(f"{folder}/{i}", kind) for i, (name, kind) in enumerate(kinds.items())}
        for number in range(rounds + 1):
            await one_round(list(engines.values()), requests, steps)
            for name, engine in engines.items():
                figures[name] += [[cpu / requests * 1e6 for cpu in engine.cpu]] * bool(number)
        for engine in engines.values():
            engine.llm.shutdown()
    return figures


def peer_round(script: Path, python: str, requests: int, steps: int) -> float:
    command = [python, str(script), "--tokenizer", str(resolve_model(DEFAULT_MODEL)), "--only", "async", "--repeat", "1"]
    command += ["--reqs", str(requests), "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (found,) = re.findall(r"async DELTA.*?([\d.]+) us", done.stdout)
    return float(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--steps", type=int, default=200, help="tokens of each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", type=Path, help="the script that measures another program's front end")
    parser.add_argument("--peer-python", default="python3", help="the Python that has this program")
    args = parser.parse_args()
    kinds = {"vllm-lite": Kind(), "vllm-lite, statistics on": Kind(log_stats=True)}
    figures: dict[str, list[float]] = {name: [] for name in kinds}
    if args.peer is not None:
        figures["peer"] = []
    for _ in range(args.rounds):
        for name, values in asyncio.run(measure(kinds, 1, args.requests, args.steps)).items():
            figures[name] += map(statistics.mean, values)
        if args.peer is not None:
            figures["peer"].append(peer_round(args.peer, args.peer_python, args.requests, args.steps))
    for name, values in figures.items():
        print(f"{name:28} {statistics.median(values):6.2f} us/token   {' '.join(f'{value:.2f}' for value in values)}")


if __name__ == "__main__":
    main()
