"""One real engine (toy executor) and every way a request can go: what the tests of the gaps look at afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
from opentelemetry import trace

from vllm_lite import AsyncEngineArgs, AsyncLLM, PoolingParams, RequestOutputKind, SamplingParams
from vllm_lite.exceptions import EngineDeadError, EngineGenerateError, QueueOverflowError, VLLMValidationError
from vllm_lite.frontend.protocol import StreamingInput
from vllm_lite.tracing.journey import RequestJourney, Run, load_run
from vllm_lite.tracing.spans import Span, run_spans

CALLER_TRACE, CALLER_SPAN = "12" * 16, "34" * 8
HEADERS = {"traceparent": f"00-{CALLER_TRACE}-{CALLER_SPAN}-01", "tracestate": "vendor=1", "baggage": "user=7"}
UNSAMPLED = {"traceparent": f"00-{'56' * 16}-{CALLER_SPAN}-00"}
SHARED = "a prompt of more than three blocks, asked twice over"  # so that the second time two blocks and more are cached
ERROR_TOKEN = 7
MAX_QUEUED = 7


def params(max_tokens: int, **options: Any) -> SamplingParams:
    defaults = {"temperature": 0.0, "ignore_eos": True, "output_kind": RequestOutputKind.DELTA}
    return SamplingParams(max_tokens=max_tokens, **(defaults | options))


class Journeys:
    """Plays them. `tokens` is what each caller has counted."""

    def __init__(self, model: Path, out: Path, **options: Any) -> None:
        defaults: dict[str, Any] = {
            "distributed_executor_backend": "toy",
            "max_model_len": 512,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 64,
            "num_gpu_blocks_override": 40,
            "max_num_queued_reqs": MAX_QUEUED,
            "trace_level": 3,
            "additional_config": {"toy_step_time": 0.002, "toy_error_token": ERROR_TOKEN},
        }
        args = AsyncEngineArgs(model=str(model), trace_dir=str(out), **(defaults | options))
        self.engine = AsyncLLM.from_engine_args(args)
        self.tokens: dict[str, int] = {}
        self.progress = asyncio.Event()

    async def ask(
        self,
        name: str,
        prompt: Any,
        how: SamplingParams,
        headers: Mapping[str, str] | None = None,
        *,
        slow: float = 0,
        rank: int | None = None,
    ) -> None:
        self.tokens[name] = 0
        async for output in self.engine.generate(prompt, how, name, trace_headers=headers, data_parallel_rank=rank):
            self.tokens[name] += sum(len(answer.token_ids) for answer in output.outputs)
            self.progress.set()
            await asyncio.sleep(slow)

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for letters until they have come so far."""
        while not reached():
            self.progress.clear()
            await self.progress.wait()

    async def play(self) -> None:
        await self.ask("plain", SHARED, params(8), HEADERS)
        await self.ask("again", SHARED, params(3))
        await self.ask("long prompt", "x" * 150, params(3))
        await self.ask("three answers", "tell me", params(4, n=3, temperature=1.0, seed=1))
        await self.ask("stopped", "stop soon", params(200, stop=[chr(c) for c in range(ord("a"), ord("z") + 1)]))
        await self.ask("unsampled", "nobody looks", params(3), UNSAMPLED)
        await self.ask("slow", "read slowly", params(30), slow=0.01)
        await self.ask("in parts", self.parts(), params(4))
        await self.refused()
        await self.given_up()
        await self.preempted()
        async for _ in self.engine.encode("a vector", PoolingParams(), "vector"):
            pass

    async def parts(self) -> AsyncGenerator[StreamingInput, None]:
        for part in ("tell me", "and now this"):
            yield StreamingInput(part)

    async def refused(self) -> None:
        with contextlib.suppress(VLLMValidationError):
            await self.ask("invalid", "y" * 600, params(3))
        with contextlib.suppress(EngineGenerateError):
            await self.ask("failed", {"prompt_token_ids": [ERROR_TOKEN]}, params(3))

    async def given_up(self) -> None:
        """Four run, three wait, one is turned away. Callers give up one of each, `abort()` another, a pause the rest."""
        names = [f"{place} {number}" for place, count in (("running", 4), ("waiting", 3)) for number in range(count)]
        tasks = {name: asyncio.create_task(self.ask(name, name, params(400))) for name in names}
        await self.until(lambda: sum(self.tokens.get(name, 0) > 0 for name in names) >= 4)
        with contextlib.suppress(QueueOverflowError):
            await self.ask("turned away", "too many", params(3))
        for name in ("running 0", "waiting 0"):
            tasks.pop(name).cancel()
        await asyncio.sleep(0)
        await self.engine.abort("running 1")
        await tasks.pop("running 1")
        await self.engine.pause_generation(mode="abort")
        await asyncio.gather(*tasks.values())
        await self.engine.resume_generation()

    async def preempted(self) -> None:
        await asyncio.gather(*(self.ask(f"crowd {number}", f"{number}" * 100, params(150)) for number in range(4)))

    async def call(self) -> None:
        """Calls that end in every way, and an answer that ends earlier than was planned; then the worker is killed."""
        await self.ask("stopped early", "hello", params(100, stop_token_ids=list(range(ord("A"), ord("z") + 1))))
        await self.engine.sleep(level=1, mode="keep")
        await self.engine.wake_up()
        await self.engine.reset_prefix_cache()
        with contextlib.suppress(RuntimeError):
            await self.engine.collective_rpc("sleep_for", 0.05, (0.2,))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.engine.collective_rpc("sleep_for", args=(0.2,)), 0.05)
        assert not await self.engine.is_sleeping()  # which is answered when that call has ended
        [worker] = psutil.Process(self.engine.engine_core.ready[0].pid).children()
        task = asyncio.create_task(self.ask("last", "hello", params(400)))
        await self.until(lambda: self.tokens.get("last", 0) > 2)
        worker.kill()
        with contextlib.suppress(EngineDeadError):
            await task

    async def balance(self) -> None:
        """Two engine cores; the first request asks for one. All while a span of somebody else's is current."""
        somebody = trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1))
        with trace.use_span(trace.NonRecordingSpan(somebody)):
            await self.ask("asked", "hello", params(3), rank=1)
            await asyncio.gather(*(self.ask(f"any {number}", "hello", params(20)) for number in range(2)))

    async def die(self) -> None:
        """Two answers are under way when the engine core is killed."""
        tasks = [asyncio.create_task(self.ask(f"dying {number}", "hello", params(400))) for number in range(2)]
        await self.until(lambda: all(self.tokens.get(f"dying {number}", 0) > 2 for number in range(2)))
        os.kill(self.engine.engine_core.ready[0].pid, signal.SIGKILL)
        await asyncio.gather(*tasks, return_exceptions=True)


class Recorded:
    """A run, its spans, and what the callers counted."""

    def __init__(self, run: Run, tokens: dict[str, int]) -> None:
        self.run, self.tokens = run, tokens
        self.spans = list(run_spans(run))
        self.by_id = {span.span_id: span for span in self.spans}

    def journey(self, name: str) -> RequestJourney:
        [found] = [request for request in self.run.requests if request.accept.external_id == name]
        return found

    def root(self, name: str) -> Span:
        return self.by_id[self.journey(name).accept.span_id]

    def below(self, name: str, span_name: str) -> list[Span]:
        """The spans of that name in the request's trace."""
        root = self.root(name)
        return [span for span in self.spans if span.trace_id == root.trace_id and span.name == span_name]

    def children(self, span: Span) -> list[Span]:
        return [other for other in self.spans if other.parent_span_id == span.span_id]

    def named(self, span_name: str) -> list[Span]:
        return [span for span in self.spans if span.name == span_name]


def play(model: Path, out: Path, act: Callable[[Journeys], Awaitable[None]], **options: Any) -> Recorded:
    async def scene() -> dict[str, int]:
        journeys = Journeys(model, out, **options)
        try:
            await act(journeys)
        finally:
            journeys.engine.shutdown()
        return journeys.tokens

    tokens = asyncio.run(scene())
    return Recorded(load_run(out), tokens)
