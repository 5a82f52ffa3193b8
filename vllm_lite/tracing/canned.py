"""A small made-up run, always the same, for demos and tests of whatever reads spools.

Process: demos and tests. Knows: records, and a story of three requests told in nine steps. Does not know: the engine; nothing
here was measured. Ann's answer is an ordinary one. Bob's ends by a stop string, so the engine makes one token too many for him:
a late letter. Cleo reads slowly, so letters are stapled; she is also preempted once and computed again.
In the variant `engine_dies` the engine core is killed during step 5, in the middle of writing a frame.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.clock import Anchor
from vllm_lite.tracing.context import SpanContext
from vllm_lite.tracing.control_page import ControlPage
from vllm_lite.tracing.recorder import Recorder
from vllm_lite.tracing.spool import SCHEMA, SpoolHeader, SpoolWriter, segment_name

US = 1000
MODEL = "canned-model"
ANCHOR = Anchor(wall_ns=1_767_225_600_000_000_000, mono_ns=0, boot_id="canned-boot")  # 2026-01-01
PIDS = {"frontend": 4001, "engine-core": 4002, "worker": 4002}
DEATH = 5  # the step in which the engine core dies, where it does
OVERRUN = 4  # the step that makes the late letter; the abort is handled after it


@dataclass
class _Caller:
    """One request: what it asks for and what has become of it so far."""

    name: str
    req: int
    num_prompt_tokens: int
    t_accept: int
    finish: str
    trace_id: str
    root: str
    post_span: str = ""
    stay_span: str = ""
    slot: int = 0  # tokens that lie in the mailbox
    t_put: int = 0
    puts: int = 0
    staples: int = 0
    takes: int = 0
    token_ids: list[int] = field(default_factory=list)
    t_first: int | None = None
    open: bool = True

    @property
    def internal_id(self) -> str:
        return f"{self.name}-{self.req:08x}"


@dataclass(frozen=True)
class _Step:
    """What one step does: tokens granted, who still computes the prompt, who gets a letter and who then reads the mailbox."""

    grants: dict[str, int]
    prefills: tuple[str, ...] = ()
    cached: dict[str, int] = field(default_factory=dict)  # of those scheduled for the first time, or again
    preempted: tuple[str, ...] = ()
    letters: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    ends: str = ""


STORY = (
    _Step(
        {"ann": 12, "bob": 9, "cleo": 11},
        prefills=("ann", "bob", "cleo"),
        cached={"ann": 0, "bob": 0, "cleo": 0},
        letters=("ann", "bob"),
        readers=("ann", "bob"),
    ),
    _Step({"ann": 1, "bob": 1, "cleo": 17}, prefills=("cleo",), letters=("ann", "bob", "cleo"), readers=("ann", "bob")),
    _Step({"ann": 1, "bob": 1, "cleo": 1}, letters=("ann", "bob", "cleo"), readers=("ann", "bob")),
    _Step({"ann": 1, "bob": 1, "cleo": 1}, letters=("ann", "bob", "cleo"), readers=("ann", "bob", "cleo"), ends="bob"),
    _Step({"ann": 1, "bob": 1}, preempted=("cleo",), letters=("ann", "bob"), readers=("ann",)),
    _Step({"ann": 1}, letters=("ann",), readers=("ann",)),
    _Step(
        {"ann": 1, "cleo": 15}, prefills=("cleo",), cached={"cleo": 16}, letters=("ann", "cleo"), readers=("ann",), ends="ann"
    ),
    _Step({"cleo": 1}, letters=("cleo",)),
    _Step({"cleo": 1}, letters=("cleo",), readers=("cleo",), ends="cleo"),
)


def write_canned_run(run_dir: Path, level: int = 3, engine_dies: bool = False) -> Path:
    """Write the control page, the spools and client.jsonl of the story into `run_dir` (made if absent), and return it."""
    run_dir.mkdir(parents=True, exist_ok=True)
    ControlPage.create(run_dir, level, pid=PIDS["frontend"], anchor=ANCHOR).close()
    _Writer(run_dir, level).tell(engine_dies)
    return run_dir


class _Writer:
    """Tells the story into the spools, step by step."""

    def __init__(self, run_dir: Path, level: int) -> None:
        self.run_dir = run_dir
        self.level = level
        self.t = 1_000_000 * US  # now, monotonic
        self._ids = itertools.count(1)
        self.loop = self._recorder("frontend", "loop")
        self.input = self._recorder("engine-core", "input")
        self.main = self._recorder("engine-core", "main")
        self.output = self._recorder("engine-core", "output")
        self.rank0 = self._recorder("worker", "rank0")
        self.lines: list[dict[str, object]] = []  # of client.jsonl
        self.callers: dict[str, _Caller] = {}

    def _recorder(self, role: str, thread: str) -> Recorder:
        header = SpoolHeader(SCHEMA, role, PIDS[role], thread, "canned-host", ANCHOR.boot_id, ANCHOR.wall_ns, ANCHOR.mono_ns)
        return Recorder(self.run_dir, role, thread, SpoolWriter(self.run_dir, role, thread, header))

    def _id(self, digits: int) -> str:
        return f"{next(self._ids):0{digits}x}"

    def _pass(self, us: int) -> int:
        """`us` microseconds later."""
        self.t += us * US
        return self.t

    def tell(self, engine_dies: bool) -> None:
        """The whole story."""
        self._start_up()
        for name, num_prompt_tokens, finish in (("ann", 12, "length"), ("bob", 9, "stop"), ("cleo", 28, "stop")):
            self._arrive(name, num_prompt_tokens, finish)
        for index, step in enumerate(STORY[:DEATH] if engine_dies else STORY):
            self._step(index, step)
        if engine_dies:
            self._die()
        self._pass(500)
        for recorder in (self.loop,) if engine_dies else (self.loop, self.input, self.main, self.output, self.rank0):
            recorder.close(self.t)
        lines = "".join(json.dumps(line) + "\n" for line in self.lines)
        (self.run_dir / "client.jsonl").write_text(lines, encoding="utf-8")

    def _start_up(self) -> None:
        start = self.t
        self.rank0.append(rec.Phase("load_weights", start + 300_000 * US, start + 900_000 * US))
        self.rank0.append(rec.Phase("warm_up", start + 900_000 * US, start + 1_100_000 * US))
        self.main.append(rec.Phase("build_executor", start + 200_000 * US, start + 1_100_000 * US))
        self.loop.append(rec.Phase("handshake", start + 150_000 * US, start + 1_150_000 * US))
        self._pass(1_200_000)
        for recorder in (self.rank0, self.main, self.loop):
            recorder.flush()

    def _arrive(self, name: str, num_prompt_tokens: int, finish: str) -> None:
        caller = _Caller(name, len(self.callers) + 1, num_prompt_tokens, self.t, finish, self._id(32), self._id(16))
        self.callers[name] = caller
        caller.post_span, caller.stay_span = self._id(16), self._id(16)
        attributes: dict[str, rec.AttributeValue] = {"gen_ai.request.max_tokens": 7, "gen_ai.request.temperature": 0.0}
        if name == "bob":
            attributes["gen_ai.request.stop_sequences"] = ["END"]
        self.loop.append(
            rec.Accept(
                req=caller.req, external_id=name, t=caller.t_accept, trace_id=caller.trace_id, span_id=caller.root,
                parent_span_id=None, tracestate=None, operation="text_completion", model=MODEL, attributes=attributes,
                level=self.level,
            )
        )  # fmt: skip
        self.loop.append(rec.Tokenise(caller.req, self._pass(20), self._pass(60), num_prompt_tokens))
        posted = self._pass(10)
        self.loop.append(rec.Post(caller.req, caller.internal_id, posted, self._pass(40), caller.post_span, 180))
        self.loop.flush()
        received = self._pass(120)
        self.input.append(
            rec.Receive(
                caller.req,
                caller.internal_id,
                received,
                self._pass(30),
                caller.trace_id,
                caller.post_span,
                caller.stay_span,
                180,
            )
        )
        self.input.flush()

    # ---- one step ---------------------------------------------------------------------------------------------------------

    def _step(self, index: int, step: _Step) -> None:
        trace_id, step_span = self._id(32), self._id(16)
        self._schedule(index, step, trace_id, step_span)
        self._execute(index, step, trace_id)
        ended = [(self.callers[step.ends].req, self.callers[step.ends].finish)] if step.ends not in ("", "bob") else []
        updated = self._pass(50)
        self.main.append(rec.Update(index, updated, self._pass(200), ended, num_bags=1))
        self.main.flush()
        send_span, queued = self._id(16), self.t
        taken, encoded, sent = self._pass(30), self._pass(40), self._pass(20)
        size = 60 + 24 * len(step.letters)
        self.output.append(rec.Send(trace_id, step_span, send_span, queued, taken, encoded, sent, 0, len(step.letters), size))
        self.output.flush()
        self._sort(index, step, SpanContext(trace_id, send_span, sampled=True).traceparent(), size)
        self._read(index, step)

    def _schedule(self, index: int, step: _Step, trace_id: str, step_span: str) -> None:
        number = {name: caller.req for name, caller in self.callers.items()}
        start = self._pass(100)
        self.main.append(
            rec.Schedule(
                step=index, t0=start, t1=self._pass(400), trace_id=trace_id, span_id=step_span,
                reqs=[number[name] for name in step.grants], tokens=list(step.grants.values()),
                prefills=[number[name] for name in step.prefills],
                new=[(number[name], cached) for name, cached in step.cached.items()],
                preempted=[number[name] for name in step.preempted],
                num_requests=len(step.grants), num_prefill=len(step.prefills), num_tokens=sum(step.grants.values()),
                num_running=len(step.grants), num_waiting=1 if index in (4, 5) else 0, kv_usage=0.125 * (index % 4 + 1),
            )
        )  # fmt: skip

    def _execute(self, index: int, step: _Step, trace_id: str) -> None:
        span, start = self._id(16), self._pass(20)
        work_start = self._pass(50)
        times = work_start, self._pass(300), self._pass(9_000 + 150 * sum(step.grants.values())), self._pass(250)
        self.rank0.append(rec.Work(index, trace_id, span, self._id(16), *times, device_ns=None, rank=0))
        self.rank0.flush()
        self.main.append(rec.Execute(index, start, self._pass(40), span))

    def _sort(self, index: int, step: _Step, trace: str, size: int) -> None:
        received, decoded = self._pass(150), self._pass(60)
        slice_start, slice_end = self._pass(5), self._pass(30 * len(step.letters))
        waiting = [self.callers[name] for name in step.letters if self.callers[name].open]
        late = [(self.callers[name].internal_id, 1) for name in step.letters if not self.callers[name].open]
        fates = "".join(self._put(caller, slice_end, index) for caller in waiting)
        if step.ends == "bob":
            self._abort(self.callers["bob"])
        columns = ([caller.req for caller in waiting], [1] * len(waiting), fates) if self.level >= 2 else ([], [], "")
        self.loop.append(
            rec.Sort(
                index, 0, trace, received, decoded, [(slice_start, slice_end, len(step.letters))], self._pass(10), size,
                len(step.letters), len(step.letters), fates.count(rec.PUT), fates.count(rec.STAPLED), 0, late, *columns,
            )
        )  # fmt: skip
        self.loop.flush()

    def _put(self, caller: _Caller, t: int, index: int) -> str:
        fate = rec.STAPLED if caller.slot else rec.PUT
        caller.puts += 1
        caller.staples += fate == rec.STAPLED
        caller.t_put = caller.t_put if caller.slot else t
        caller.slot += 1
        caller.t_first = caller.t_first or t
        caller.token_ids.append(100 * caller.req + index)
        return fate

    def _abort(self, caller: _Caller) -> None:
        """The stop string was seen: Bob's letter is his last, and the engine is told."""
        caller.open = False
        span, sent = self._id(16), self._pass(15)
        self.loop.append(rec.Abort(caller.req, sent, "stop_string", span, [caller.internal_id]))
        header = SpanContext(caller.trace_id, span, sampled=True).traceparent()
        self.input.append(rec.ReceiveAbort([caller.internal_id], "stop_string", sent + 700 * US, {caller.internal_id: header}))
        self.input.flush()

    def _read(self, index: int, step: _Step) -> None:
        """Callers take their letters; one whose answer is whole goes."""
        for name in step.readers:
            caller, t = self.callers[name], self._pass(25)
            if self.level >= 2:
                self.loop.take(caller.req, t, caller.slot, t - caller.t_put)
            caller.takes += 1
            caller.slot = 0
            if step.ends == name:
                caller.open = False
                self._close(caller, "finished", caller.finish)
        if index == OVERRUN:
            self.main.append(rec.Leave(self.callers["bob"].req, self._pass(5), "stop_string", "running"))
            self.main.flush()
        self.loop.flush()

    def _close(self, caller: _Caller, outcome: str, finish: str | None) -> None:
        dead = outcome == "engine_dead"
        num_tokens = len(caller.token_ids)
        stop = "END" if caller.name == "bob" else None
        self.loop.append(
            rec.Close(
                req=caller.req, t=self._pass(5), outcome=outcome, finish_reasons=[finish] if finish else [],
                stop_reason=stop, error_type="engine_dead" if dead else None,
                error_message="the engine core is dead" if dead else None, puts=caller.puts, staples=caller.staples,
                takes=caller.takes, left=int(caller.slot > 0), kept_back=0, num_prompt_tokens=caller.num_prompt_tokens,
                num_output_tokens=num_tokens, num_cached_tokens=0, t_first_token=caller.t_first,
            )
        )  # fmt: skip
        taken = caller.token_ids[: num_tokens - caller.slot]
        self.lines.append(
            {
                "request_id": caller.name, "prompt": f"Tell me about {caller.name}.", "token_ids": taken, "takes": caller.takes,
                "text": f"({len(taken)} tokens)", "finish_reason": finish, "stop_reason": stop,
                "traceparent": None, "kind": "error" if dead else "finished", "error": "EngineDeadError" if dead else None,
            }
        )  # fmt: skip

    def _die(self) -> None:
        """The engine core is killed while it writes; the front end tells who still waits."""
        torn = self.run_dir / segment_name("engine-core", PIDS["engine-core"], "main", 0)
        with torn.open("ab") as file:
            file.write(b"\x40\x00\x00\x00\x12\x34\x56\x78half a frame")
        self._pass(9_000)
        self.loop.append(rec.EngineDead(0, self.t))
        for name in ("ann", "cleo"):
            self._close(self.callers[name], "engine_dead", None)
        self.loop.flush()
