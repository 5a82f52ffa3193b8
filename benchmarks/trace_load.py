"""The records of a busy engine without the engine: `callers` requests at a time, one token each in every step.

Used by the benchmarks of the exporter and of `trace show`. Ends are spread, so that in each step some requests end and others
take their place. All times are monotonic nanoseconds, given by who calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.context import SpanContext, new_span_id, new_trace_id
from vllm_lite.tracing.control_page import ControlPage
from vllm_lite.tracing.recorder import Recorder

MS = 1_000_000
PROMPT_TOKENS = 64
SLICE = 128


@dataclass
class Request:
    """One request under way."""

    req: int
    tokens_left: int
    trace_id: str
    root: str
    t_first: int | None = None
    num_tokens: int = 0

    @property
    def internal_id(self) -> str:
        return f"request-{self.req}-{self.req:08x}"


class Load:
    """Writes the spools of one run. `tokens` is the length of an answer, `total` how many requests there are in all."""

    def __init__(self, run_dir: Path, level: int, callers: int = 256, tokens: int = 200, total: int | None = None) -> None:
        ControlPage.create(run_dir, level, pid=1).close()
        self.level, self.callers, self.tokens, self.total = level, callers, tokens, total
        self.loop = Recorder(run_dir, "frontend", "loop")
        self.input, self.main, self.output = (Recorder(run_dir, "engine-core", name) for name in ("input", "main", "output"))
        self.rank0 = Recorder(run_dir, "worker", "rank0")
        self.running: list[Request] = []
        self.started = self.steps = self.written = 0

    def step(self, t: int) -> bool:
        """One step that begins at `t` and takes some 15 ms; False once all requests are done."""
        new = self._arrivals(t)
        if not self.running:
            return False
        ended = [request for request in self.running if request.tokens_left == 1]
        trace_id, send_span = new_trace_id(), new_span_id()
        self._engine_core(t, trace_id, send_span, new, ended)
        self._front_end(t + 12 * MS, SpanContext(trace_id, send_span, sampled=True).traceparent(), ended)
        self.running = [request for request in self.running if request.tokens_left]
        self.steps += 1
        return True

    def close(self) -> None:
        """Say farewell in every spool."""
        for recorder in (self.loop, self.input, self.main, self.output, self.rank0):
            recorder.close()

    def _arrivals(self, t: int) -> list[Request]:
        room = self.callers - len(self.running)
        left = room if self.total is None else min(room, self.total - self.started)
        first_wave = self.started < self.callers
        new = []
        for n in range(left):
            self.started += 1
            tokens = 1 + (self.tokens - 1) * (n + 1) // self.callers if first_wave else self.tokens
            request = Request(self.started, tokens, new_trace_id(), new_span_id())
            self._arrive(request, t - MS)
            new.append(request)
        self.running += new
        return new

    def _arrive(self, r: Request, t: int) -> None:
        post, asked = new_span_id(), {"gen_ai.request.max_tokens": self.tokens, "gen_ai.request.temperature": 0.0}
        self.loop.append(
            rec.Accept(r.req, f"request-{r.req}", t, r.trace_id, r.root, None, None, "text_completion", "m", asked, self.level)
        )
        self.loop.append(rec.Tokenise(r.req, t + 1000, t + 90_000, PROMPT_TOKENS))
        self.loop.append(rec.Post(r.req, r.internal_id, t + 100_000, t + 140_000, post, 400))
        self.loop.flush()
        self.input.append(rec.Receive(r.req, r.internal_id, t + 300_000, t + 330_000, r.trace_id, post, new_span_id(), 400))
        self.input.flush()

    def _engine_core(self, t: int, trace_id: str, send_span: str, new: list[Request], ended: list[Request]) -> None:
        step_span, execute_span, fresh = new_span_id(), new_span_id(), {request.req for request in new}
        reqs = [request.req for request in self.running]
        tokens = [PROMPT_TOKENS if req in fresh else 1 for req in reqs]
        self.main.append(
            rec.Schedule(
                self.steps, t, t + MS // 2, trace_id, step_span, reqs, tokens, list(fresh), [(req, 0) for req in fresh], [],
                len(reqs), len(fresh), sum(tokens), len(reqs), 0, 0.5,
            )
        )  # fmt: skip
        self.rank0.append(
            rec.Work(self.steps, trace_id, execute_span, new_span_id(), t + MS, t + 2 * MS, t + 9 * MS, t + 10 * MS, None, 0)
        )
        self.rank0.flush()
        self.main.append(rec.Execute(self.steps, t + MS, t + 10 * MS, execute_span))
        finished = [(request.req, "length") for request in ended]
        self.main.append(rec.Update(self.steps, t + 10 * MS, t + 11 * MS, finished, 1))
        self.main.flush()
        at = t + 11 * MS
        self.output.append(
            rec.Send(trace_id, step_span, send_span, at, at + 30_000, at + 60_000, at + 80_000, 0, len(reqs), 30 * len(reqs))
        )
        self.output.flush()

    def _front_end(self, t: int, traceparent: str, ended: list[Request]) -> None:
        size = len(self.running)
        slices = [(t + 50_000 * n, t + 50_000 * (n + 1), min(SLICE, size - n)) for n in range(0, size, SLICE)]
        done = slices[-1][1] + 10_000
        columns = ([r.req for r in self.running], [1] * size, rec.PUT * size) if self.level > 1 else ([], [], "")
        self.loop.append(
            rec.Sort(self.steps, 0, traceparent, t, t + 40_000, slices, done, 30 * size, size, size, size, 0, 0, [], *columns)
        )
        for n, request in enumerate(self.running):
            request.tokens_left -= 1
            request.num_tokens += 1
            request.t_first = request.t_first or t
            if self.level > 1:
                self.loop.take((request.req, done + 5000 * n))
        self.written += size
        for n, r in enumerate(ended):
            count = r.num_tokens
            self.loop.append(
                rec.Close(
                    r.req, done + 5000 * size + 1000 * n, "finished", ["length"], None, None, None, count, 0, count, 0, 0,
                    PROMPT_TOKENS, count, 0, r.t_first,
                )
            )  # fmt: skip
        self.loop.flush()
