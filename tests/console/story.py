"""Made-up runs for the console's tests: a small engine whose every time is computed, so that screens are always the same.

A `Caller` has a prompt, an answer length and habits (reads slowly, walks away, meets its stop string). `tell` plays them
through steps of fixed times and gives the Run that the reader would have made of the records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.context import SpanContext
from vllm_lite.tracing.journey import Process, Run
from vllm_lite.tracing.journey.assembler import Assembler

US, MS = 1_000, 1_000_000
BOOT = 5_000 * MS


@dataclass
class Caller:
    """One request of a story. Times are nanoseconds after the run's start."""

    prompt: int = 12
    answer: int = 8
    arrives: int = 0
    slow: int = 0  # time between two takes
    leaves_after: int | None = None  # tokens after which the caller walks away
    stops: bool = False  # the answer ends by a stop string (so the engine core makes one token more)
    cached: int = 0
    # what has happened so far
    made: int = 0
    slot: list[int] = field(default_factory=list)
    t_put: int = 0
    t_free: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("puts", "staples", "takes", "left"), 0))
    t_first: int | None = None
    closed: bool = False
    in_core: bool = False
    prefilled: bool = False


class Teller:
    """Plays callers through steps and feeds an Assembler."""

    def __init__(self, callers: list[Caller], level: int = 2, step_time: int = 15 * MS, chunk: int = 1024) -> None:
        self.callers, self.level, self.step_time, self.chunk = callers, level, step_time, chunk
        self.front = Process("frontend", 100, "host", "boot")
        self.core = Process("engine-core", 101, "host", "boot")
        self.worker = Process("worker", 101, "host", "boot")
        self.assembler = Assembler()
        self.ids = 0
        self.step = self.bag = 0

    def feed(self, process: Process, record: rec.Record) -> None:
        process.t_last = max(process.t_last, record.newest)
        self.assembler.feed(process, record)

    def new_id(self, digits: int) -> str:
        self.ids += 1
        return f"{self.ids:0{digits}x}"

    def tell(self, path: str = "/runs/story") -> Run:
        """Play until every caller is closed."""
        t = BOOT
        for req, caller in enumerate(self.callers):
            caller.arrives += BOOT
            self._arrive(req, caller)
        while any(not c.closed for c in self.callers):
            t = self._play_step(t)
        self.front.threads = self.core.threads = self.worker.threads = {"main": True}
        a = self.assembler
        requests = sorted(a.requests.values(), key=lambda r: r.accept.t)
        return Run(Path(path), [self.front, self.core, self.worker], requests, list(a.steps.values()), a.bags, deaths=a.deaths)

    def _arrive(self, req: int, caller: Caller) -> None:
        t, trace, root = caller.arrives, self.new_id(32), self.new_id(16)
        attributes = {"gen_ai.request.max_tokens": caller.answer}
        self.feed(
            self.front,
            rec.Accept(req + 1, f"req-{req}", t, trace, root, None, None, "text_completion", "story", attributes, self.level),
        )
        self.feed(self.front, rec.Tokenise(req + 1, t + 60 * US, t + 900 * US, caller.prompt))
        span = self.new_id(16)
        self.feed(
            self.front, rec.Post(req + 1, f"req-{req}-1a2b3c4d", t + 930 * US, t + 1010 * US, span, 180 + 3 * caller.prompt)
        )
        received = rec.Receive(
            req + 1, f"req-{req}-1a2b3c4d", t + 1100 * US, t + 1190 * US, trace, span, self.new_id(16), 180 + 3 * caller.prompt
        )
        self.feed(self.core, received)

    def _play_step(self, t: int) -> int:
        ready = [(i, c) for i, c in enumerate(self.callers) if c.arrives + 1190 * US <= t and not self._over(c)]
        if not ready:
            for caller in self.callers:
                self._read(caller, t + self.step_time)
            return t + self.step_time
        new = [(i + 1, c.cached) for i, c in ready if not c.in_core]
        prefills, letters, tokens, cost = [], [], [], 0
        for i, c in ready:
            if c.prefilled:
                tokens.append(1)
                letters.append((i, c))
                continue
            done = c.made if c.in_core else c.cached
            grant = min(self.chunk, c.prompt - done)
            c.in_core, c.made = True, done + grant
            prefills.append(i + 1)
            tokens.append(grant)
            cost += grant * 180 * US
            if c.made >= c.prompt:
                c.prefilled, c.made = True, 0
                letters.append((i, c))
        trace, root = self.new_id(32), self.new_id(16)
        waiting = sum(not c.closed and not c.in_core and c.arrives <= t for c in self.callers)
        t1 = t + 120 * US + 9 * US * len(ready)
        reqs = [i + 1 for i, _ in ready]
        self.feed(
            self.core,
            rec.Schedule(
                self.step,
                t,
                t1,
                trace,
                root,
                reqs,
                tokens,
                prefills,
                new,
                [],
                len(ready),
                len(prefills),
                sum(tokens),
                len(ready),
                waiting,
                0.011 * len(ready),
            ),
        )
        t2 = t1 + 30 * US
        t3 = t2 + self.step_time + cost + (self.step * 7919 % 13) * 100 * US
        span = self.new_id(16)
        work = rec.Work(
            self.step, trace, span, self.new_id(16), t2 + 20 * US, t2 + 300 * US, t3 - 400 * US, t3 - 40 * US, None, 0
        )
        self.feed(self.worker, work)
        self.feed(self.core, rec.Execute(self.step, t2, t3, span))
        t4 = t3 + 40 * US + 12 * US * len(letters)
        finished = [(i + 1, "length") for i, c in letters if not c.stops and c.made + 1 >= c.answer and c.leaves_after is None]
        self.feed(self.core, rec.Update(self.step, t3, t4, finished))
        self.step += 1
        if letters:
            self._play_bag(letters, trace, root, t4)
        return t4 + 50 * US

    def _over(self, caller: Caller) -> bool:
        """The engine core has nothing left to do for it."""
        done = caller.prefilled and caller.made >= caller.answer + caller.stops
        return done or (caller.closed and not caller.stops)

    def _play_bag(self, letters: list[tuple[int, Caller]], trace: str, root: str, t: int) -> None:
        span, size = self.new_id(16), 60 + 35 * len(letters)
        self.feed(self.core, rec.Send(trace, root, span, t, t + 15 * US, t + 60 * US, t + 90 * US, 0, len(letters), size))
        received = t + 160 * US
        done = received + 180 * US + 22 * US * len(letters)
        reqs, tokens, fates, late = [], [], "", []
        ends: list[tuple[int, Caller]] = []
        for i, c in letters:
            self._read(c, received)
            if c.slot:  # nobody reads while a slice is sorted
                c.t_free = max(c.t_free, done)
            c.made += 1
            if c.closed or c.made > c.answer:
                late.append((f"req-{i}-1a2b3c4d", 1))
                continue
            reqs.append(i + 1)
            tokens.append(1)
            c.t_first = c.t_first if c.t_first is not None else done - 10 * US
            c.counts["puts"] += 1
            if c.slot:
                c.counts["staples"] += 1
                fates += rec.STAPLED
            else:
                c.t_put = done - 10 * US
                fates += rec.PUT
            c.slot.append(1)
            if c.made >= (c.leaves_after or c.answer):
                ends.append((i, c))
        context = SpanContext(trace, span, sampled=True).traceparent()
        columns = (reqs, tokens, fates) if self.level > 1 else ([], [], "")
        slices = [(received + 80 * US, done - 10 * US, len(reqs))]
        puts, staples = fates.count(rec.PUT), fates.count(rec.STAPLED)
        counts = (len(letters), len(letters), puts, staples, 0)
        for i, c in ends:
            if c.stops:
                self._abort(i, "stop_string", done - 5 * US)
        self.feed(
            self.front,
            rec.Sort(self.bag, 0, context, received, received + 80 * US, slices, done, size, *counts, late, *columns),
        )
        self.bag += 1
        for i, c in ends:
            self._end(i, c, done)

    def _read(self, caller: Caller, now: int) -> None:
        """The caller takes what lies in its mailbox, as soon as it is free to."""
        t = max(caller.t_put + 45 * US, caller.t_free)
        if caller.slot and t <= now and not caller.closed:
            req = self.callers.index(caller) + 1
            if self.level > 1:
                self.feed(self.front, rec.Takes([req], [t]))
            caller.counts["takes"] += 1
            caller.slot, caller.t_free = [], t + caller.slow

    def _abort(self, i: int, reason: str, t: int) -> None:
        span = self.new_id(16)
        self.feed(self.front, rec.Abort(i + 1, t, reason, span, [f"req-{i}-1a2b3c4d"]))
        self.feed(self.core, rec.ReceiveAbort([f"req-{i}-1a2b3c4d"], reason, t + 140 * US, {}))
        self.feed(self.core, rec.Leave(i + 1, t + 220 * US, reason, "running"))

    def _end(self, i: int, c: Caller, t: int) -> None:
        outcome, reasons, stop, error = "finished", ["stop" if c.stops else "length"], "." if c.stops else None, None
        if c.leaves_after is not None:
            outcome, reasons, error = "aborted", [], "aborted"
            self._read(c, t + 50 * US)
            self._abort(i, "client_disconnect", t + 120 * US)
            c.made = c.answer + 1
            t += 130 * US
        else:
            self._read(c, max(t, c.t_put, c.t_free) + c.slow + 60 * US)
            t = max(t, c.t_free - c.slow) + 20 * US
        c.closed = True
        close = rec.Close(
            i + 1,
            t,
            outcome,
            reasons,
            stop,
            error,
            None,
            **c.counts,
            kept_back=0,
            num_prompt_tokens=c.prompt,
            num_output_tokens=c.leaves_after or c.answer,
            num_cached_tokens=c.cached,
            t_first_token=c.t_first,
        )
        self.feed(self.front, close)


def short_story(level: int = 2) -> Run:
    """Three requests: an ordinary one, one that reads slowly, one that ends by a stop string."""
    callers = [Caller(12, 9), Caller(9, 8, 2 * MS, slow=40 * MS, cached=16), Caller(28, 5, 3 * MS, stops=True)]
    return Teller(callers, level).tell()


def long_story() -> Run:
    """Two requests over 60 bags, one of them left by its caller."""
    return Teller([Caller(20, 60), Caller(300, 60, 4 * MS, leaves_after=40)], chunk=128).tell()


def crowd() -> Run:
    """40 requests, some slow, some leaving, some ending by a stop string."""
    callers = [
        Caller(
            8 + i,
            10 + i % 7,
            i * 6 * MS,
            slow=30 * MS * (i % 9 == 3),
            leaves_after=4 if i % 11 == 5 else None,
            stops=i % 10 == 8 and i != 38,
        )
        for i in range(40)
    ]
    return Teller(callers).tell()
