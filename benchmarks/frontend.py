"""Front-end CPU per output token: AsyncLLM's own output handler, OutputProcessor, mailboxes and `async for` over generate().

    python benchmarks/frontend.py [--peer SCRIPT --peer-python PYTHON]

256 requests, DELTA, 200 tokens each of real text. No engine core runs: a client hands out bags that were made before, so what
is timed is what the front end does between a decoded bag and the caller's hands. CPU seconds of this process, the median of
rounds.
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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

TEXT = (
    "The quick brown fox jumps over the lazy dog. In 1905 Albert Einstein published four papers; "
    "def f(x):\n    return x ** 2 + 1\n\nNaïve café, 日本語 テスト, emoji 😀 and numbers 3.14159. "
) * 40


class Script(EngineCoreClient):
    """An engine core client that has every bag ready: one token for each request in each."""

    def __init__(self) -> None:
        self.ready = [EngineCoreReadyResponse(PROTOCOL_VERSION, 0, 1, 2048, 1000, 16, "float32", "cpu", 49152, "none")]
        self.added: list[str] = []
        self._bags: Iterator[Bag] = iter(())
        self._go = asyncio.Event()

    def load(self, bags: list[Bag]) -> None:
        self._bags = iter(bags)
        self._go.set()

    @property
    def dead_error(self) -> EngineDeadError | None:
        return None

    @property
    def dead_engine_index(self) -> int | None:
        return None

    async def get_bag_async(self) -> Bag:
        await self._go.wait()
        await asyncio.sleep(0)  # as when the loop hears from the socket: readers have their turn before
        bag = next(self._bags, None)
        if bag is None:
            self._go.clear()
            return await self.get_bag_async()
        return bag

    async def add_request_async(self, request: EngineCoreRequest) -> Posted:
        self.added.append(request.request_id)
        return Posted(0, 100)

    async def abort_requests_async(
        self, request_ids: Sequence[str], reason: str = "api", trace_headers: Mapping[str, str] | None = None
    ) -> None:
        raise AssertionError("nothing is given up here")

    async def call_utility_async(self, method: str, *args: Any) -> Any:
        return ["generate"]

    async def ping_async(self, seconds: float) -> None: ...

    def shutdown(self, timeout: float | None = None) -> None: ...


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


async def read(llm: AsyncLLM, name: str, steps: int) -> int:
    params = SamplingParams(max_tokens=steps, output_kind=RequestOutputKind.DELTA)
    tokens = 0
    async for output in llm.generate([1] * 64, params, name):
        tokens += len(output.outputs[0].token_ids)
    return tokens


async def one_round(llm: AsyncLLM, client: Script, requests: int, steps: int) -> float:
    """CPU microseconds per token."""
    client.added.clear()
    tasks = [asyncio.create_task(read(llm, str(i), steps)) for i in range(requests)]
    while len(client.added) < requests:  # noqa: ASYNC110  (posting has no event)
        await asyncio.sleep(0)
    tokenizer = llm.get_tokenizer()
    traced = await llm.is_tracing_enabled()
    bags = make_bags(client.added, tokenizer.encode(TEXT, add_special_tokens=False), steps, traced)
    gc.collect()
    gc.freeze()
    start = time.process_time()
    client.load(bags)
    tokens = sum(await asyncio.gather(*tasks))
    cpu = time.process_time() - start
    gc.unfreeze()
    assert tokens == requests * steps
    return cpu / tokens * 1e6


def build(folder: str, level: int, log_stats: bool) -> tuple[AsyncLLM, Script]:
    client = Script()
    async_llm.make_async_mp_client = lambda _: client
    args = AsyncEngineArgs(model=str(resolve_model(DEFAULT_MODEL)), max_model_len=2048, trace_level=level, trace_dir=folder)
    return AsyncLLM.from_vllm_config(args.create_engine_config(), disable_log_stats=not log_stats), client


async def measure(kinds: Mapping[str, tuple[int, bool]], rounds: int, requests: int, steps: int) -> dict[str, list[float]]:
    """`rounds` figures of each kind (trace level, statistics), taking turns, after one round of each that does not count."""
    figures: dict[str, list[float]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as folder:
        engines = {name: build(f"{folder}/{i}", *kind) for i, (name, kind) in enumerate(kinds.items())}
        for number in range(rounds + 1):
            for name, (llm, client) in engines.items():
                figure = await one_round(llm, client, requests, steps)
                if number:
                    figures[name].append(figure)
        for llm, _ in engines.values():
            llm.shutdown()
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
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", type=Path, help="the script that measures another program's front end")
    parser.add_argument("--peer-python", default="python3", help="the Python that has this program")
    args = parser.parse_args()
    kinds = {"vllm-lite": (0, False), "vllm-lite, statistics on": (0, True)}
    figures: dict[str, list[float]] = {name: [] for name in kinds}
    if args.peer is not None:
        figures["peer"] = []
    for _ in range(args.rounds):
        for name, values in asyncio.run(measure(kinds, 1, args.requests, args.steps)).items():
            figures[name] += values
        if args.peer is not None:
            figures["peer"].append(peer_round(args.peer, args.peer_python, args.requests, args.steps))
    for name, values in figures.items():
        print(f"{name:28} {statistics.median(values):6.2f} us/token   {' '.join(f'{value:.2f}' for value in values)}")


if __name__ == "__main__":
    main()
