"""Records with defaults, and the journeys that an Assembler makes of them. Times in tests are small numbers of nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import RequestJourney, Run, StepJourney
from vllm_lite.tracing.journey.assembler import Assembler
from vllm_lite.tracing.process import Process

TRACE, ROOT = "a" * 32, "b" * 16
STEP_TRACE = "c" * 32


def front(**fields: Any) -> Process:
    return Process("frontend", 1, "host", "boot", **fields)


def core(**fields: Any) -> Process:
    return Process("engine-core", 2, "host", "boot", **fields)


def worker(**fields: Any) -> Process:
    return Process("worker", 3, "host", "boot", **fields)


def accept(req: int = 1, t: int = 0, **fields: Any) -> rec.Accept:
    defaults = {
        "external_id": f"r{req}",
        "trace_id": TRACE,
        "span_id": f"{req:016x}",
        "parent_span_id": None,
        "tracestate": None,
        "operation": "text_completion",
        "model": "m",
        "attributes": {},
        "level": 3,
    }
    return rec.Accept(req=req, t=t, **(defaults | fields))


def post(req: int = 1, t0: int = 10, t1: int = 20, **fields: Any) -> rec.Post:
    sample = fields.get("sample", 0)
    defaults = {"internal_id": f"{req}_{sample}", "span_id": f"e{req:014x}{sample}", "body_size": 100}
    return rec.Post(req=req, t0=t0, t1=t1, **(defaults | fields))


def receive(req: int = 1, t0: int = 30, t1: int = 40, **fields: Any) -> rec.Receive:
    owner, _, sample = fields.get("internal_id", "1_0").partition("_")
    defaults = {
        "internal_id": "1_0",
        "trace_id": TRACE,
        "parent_span_id": f"e{int(owner):014x}{sample}" if owner.isdecimal() else "e" * 16,
        "span_id": f"d{req:015x}",
        "body_size": 100,
    }
    return rec.Receive(req=req, t0=t0, t1=t1, **(defaults | fields))


def schedule(step: int, t0: int, grants: dict[int, int], **fields: Any) -> rec.Schedule:
    defaults = {
        "t1": t0 + 2,
        "trace_id": step_trace(step),
        "span_id": f"5{step:015x}",
        "prefills": [],
        "new": [],
        "preempted": [],
        "num_requests": len(grants),
        "num_prefill": 0,
        "num_tokens": sum(grants.values()),
        "num_running": len(grants),
        "num_waiting": 0,
        "kv_usage": 0.5,
    }
    return rec.Schedule(step=step, t0=t0, reqs=list(grants), tokens=list(grants.values()), **(defaults | fields))


def step_trace(step: int) -> str:
    return f"c{step:031x}"


def execute(step: int, t0: int, t1: int) -> rec.Execute:
    return rec.Execute(step, t0, t1, f"6{step:015x}")


def work(step: int, t0: int, t3: int) -> rec.Work:
    return rec.Work(step, step_trace(step), f"6{step:015x}", f"7{step:015x}", t0, t0 + 1, t3 - 1, t3, None, 0)


def update(step: int, t0: int, t1: int, finished: Iterable[tuple[int, str]] = (), num_bags: int = -1) -> rec.Update:
    return rec.Update(step, t0, t1, list(finished), num_bags)


def send(step: int, t0: int, num_outputs: int = 1, client: int = 0) -> rec.Send:
    span_id = f"8{client}{step:014x}"
    return rec.Send(step_trace(step), f"5{step:015x}", span_id, t0 - 1, t0, t0 + 1, t0 + 2, client, num_outputs, 50)


def sort(step: int, t: int, letters: Iterable[tuple[int, int, str]] = (), **fields: Any) -> rec.Sort:
    """A bag received at `t` with `letters` (req, tokens, fate), sorted in one slice from t+2 to t+4, done at t+5."""
    columns = list(letters)
    late = fields.get("late", [])
    fates = "".join(fate for _, _, fate in columns)
    size = len(columns) + len(late)
    defaults = {
        "bag": step,
        "engine_index": 0,
        "trace": f"00-{step_trace(step)}-80{step:014x}-01",
        "t_received": t,
        "t_decoded": t + 1,
        "slices": [(t + 2, t + 4, size)],
        "t_done": t + 5,
        "body_size": 50,
        "num_outputs": size,
        "num_tokens": sum(tokens for _, tokens, _ in columns),
        "num_put": fates.count("p"),
        "num_stapled": fates.count("s"),
        "num_kept_back": fates.count("k"),
        "late": late,
        "reqs": [req for req, _, _ in columns],
        "tokens": [tokens for _, tokens, _ in columns],
        "fates": fates,
    }
    return rec.Sort(**(defaults | fields))


def abort(req: int = 1, t: int = 50, reason: str = "client_disconnect", **fields: Any) -> rec.Abort:
    defaults = {"span_id": f"9{req:015x}", "internal_ids": [f"{req}_0"]}
    return rec.Abort(req=req, t=t, reason=reason, **(defaults | fields))


def receive_abort(t: int = 60, reason: str = "client_disconnect", ids: Iterable[str] = ("1_0",)) -> rec.ReceiveAbort:
    header = f"00-{TRACE}-9{1:015x}-01"
    return rec.ReceiveAbort(list(ids), reason, t, dict.fromkeys(ids, header))


def close(req: int = 1, t: int = 100, outcome: str = "finished", **fields: Any) -> rec.Close:
    defaults = {
        "finish_reasons": ["length"] if outcome == "finished" else [],
        "stop_reason": None,
        "error_type": None,
        "error_message": None,
        "puts": 0,
        "staples": 0,
        "takes": 0,
        "left": 0,
        "kept_back": 0,
        "num_prompt_tokens": 5,
        "num_output_tokens": 0,
        "num_cached_tokens": 0,
        "t_first_token": None,
    }
    return rec.Close(req=req, t=t, outcome=outcome, **(defaults | fields))


def call(t0: int, t1: int, **fields: Any) -> rec.Call:
    defaults = {"call_id": 7, "method": "sleep", "engine_index": 0, "trace_id": TRACE, "span_id": ROOT, "error": None}
    return rec.Call(t0=t0, t1=t1, **(defaults | fields))


def serve(t_received: int, t0: int, t1: int, **fields: Any) -> rec.Serve:
    ids = {"trace_id": TRACE, "parent_span_id": ROOT, "span_id": "4" * 16}
    defaults = {"call_id": 7, "client_index": 0, "method": "sleep", "error": None, **ids}
    return rec.Serve(t_received=t_received, t0=t0, t1=t1, **(defaults | fields))


def assemble(*pairs: tuple[Process, rec.Record]) -> Assembler:
    assembler = Assembler()
    for process, record in pairs:
        assembler.feed(process, record)
    return assembler


def request(*pairs: tuple[Process, rec.Record]) -> RequestJourney:
    """The one request of these records."""
    [only] = assemble(*pairs).requests.values()
    return only


def step(*pairs: tuple[Process, rec.Record]) -> StepJourney:
    """The one step of these records."""
    [only] = assemble(*pairs).steps.values()
    return only


def run(*pairs: tuple[Process, rec.Record]) -> Run:
    """A Run of these records."""
    assembler = assemble(*pairs)
    assembler.finish()
    processes = list({id(process): process for process, _ in pairs}.values())
    return Run(
        Path(),
        processes,
        list(assembler.requests.values()),
        list(assembler.steps.values()),
        assembler.bags,
        assembler.strays,
        assembler.phases,
        assembler.deaths,
        assembler.dropped,
        list(assembler.calls.values()),
        unclaimed=assembler.unclaimed,
    )
