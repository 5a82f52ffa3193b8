"""The engine core's stamps: which steps are recorded, and what is written about them, about calls and about its own life.

Process: engine core, main thread. Knows: the recorder, traced requests by number. Does not know: how a step is planned or run;
it is shown each stage's result. When tracing is off every method is skipped by its caller, or returns at its first line.
Mirrors: nothing in vLLM.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vllm_lite.engine_core.core.io_threads import UtilityCall
from vllm_lite.engine_core.request import Request
from vllm_lite.engine_core.scheduler import Scheduler
from vllm_lite.tracing.context import SpanContext, new_span_id, new_trace_id, parse_traceparent
from vllm_lite.tracing.recorder import Recorder, described, now_ns
from vllm_lite.tracing.records import Execute, Leave, Schedule, Serve, Update
from vllm_lite.wire.messages import EngineCoreOutputs
from vllm_lite.wire.step import SchedulerOutput


@dataclass(slots=True)
class StepStamp:
    """The ids of one recorded step, chosen when it was planned."""

    step: int
    trace_id: str = field(default_factory=new_trace_id)
    span_id: str = field(default_factory=new_span_id)
    execute_span_id: str = field(default_factory=new_span_id)
    t_execute: int = 0


class StepTracer:
    """Records steps and departures. `trace_steps` is "sampled", "all", "off" or a share of all steps ("0.1")."""

    def __init__(self, trace_dir: str | None, trace_steps: str) -> None:
        self._recorder = Recorder(trace_dir, "engine-core", "main") if trace_dir is not None else None
        self._trace_steps = trace_steps
        self._live: dict[str, int] = {}  # traced requests that are in the core, by internal id
        self._told = (0, 0)  # blocks evicted and refused until the last recorded step
        self._preempted: set[int] = set()  # since the last recorded step
        self.step_span_id: str | None = None  # of the step whose bags were stamped last

    def enter(self, request: Request) -> None:
        """A request was added; follow it if it is traced."""
        if request.trace is not None:
            self._live[request.request_id] = request.trace

    def begin(self) -> int:
        """The time a step's planning begins, or 0 where nothing is recorded now."""
        if self._recorder is None or not self._recorder.refresh():
            return 0
        return now_ns()

    def scheduled(self, t0: int, scheduler: Scheduler, plan: SchedulerOutput) -> StepStamp | None:
        """A step was planned from `t0` until now. None where it is not to be recorded."""
        t1 = now_ns()
        assert self._recorder is not None
        self._preempted.update(self._live[request_id] for request_id in plan.preempted_req_ids if request_id in self._live)
        if not plan.num_scheduled_tokens or not self._wants(plan):
            return None
        stamp = StepStamp(plan.step)
        reqs, tokens, prefills = [], [], []
        num_prefill = 0
        for request_id, count in plan.num_scheduled_tokens.items():
            request = scheduler.requests[request_id]
            prefill = request.num_computed_tokens - count < max(request.num_prompt_tokens, request.num_tokens - 1)
            num_prefill += prefill
            if request_id in self._live:
                reqs.append(self._live[request_id])
                tokens.append(count)
                if prefill:
                    prefills.append(self._live[request_id])
        new = [request for request in plan.scheduled_new_reqs if request.req_id in self._live]
        manager, told = scheduler.kv_cache_manager, self._told
        self._told = manager.block_pool.num_evicted, manager.num_refused
        self._recorder.append(
            Schedule(
                plan.step,
                t0,
                t1,
                stamp.trace_id,
                stamp.span_id,
                reqs,
                tokens,
                prefills,
                [(self._live[request.req_id], request.num_computed_tokens) for request in new],
                sorted(self._preempted),
                len(plan.num_scheduled_tokens),
                num_prefill,
                plan.total_num_scheduled_tokens,
                len(scheduler.running),
                len(scheduler.waiting),
                manager.usage,
                self._told[0] - told[0],
                self._told[1] - told[1],
                [(self._live[r.req_id], count) for r in new if (count := scheduler.requests[r.req_id].num_refused)],
            )
        )
        self._preempted.clear()
        plan.step_trace = SpanContext(stamp.trace_id, stamp.execute_span_id, sampled=True).traceparent()
        stamp.t_execute = now_ns()
        return stamp

    def executed(self, stamp: StepStamp) -> None:
        """The executor has answered."""
        assert self._recorder is not None
        self._recorder.append(Execute(stamp.step, stamp.t_execute, now_ns(), stamp.execute_span_id))

    def updated(
        self, t0: int, stamp: StepStamp | None, bags: Mapping[int, EngineCoreOutputs], stale: Sequence[tuple[str, int]]
    ) -> None:
        """update_from_output ran from `t0` until now and made `bags`, for nobody the `stale` tokens: stamp the bags, and write
        the step's frame."""
        self.step_span_id = stamp.span_id if stamp is not None else None
        if stamp is None and not self._live:
            return
        t1 = now_ns()
        ended = [o for bag in bags.values() for o in bag.outputs if o.finish_reason is not None and o.request_id in self._live]
        finished = [(self._live.pop(output.request_id), str(output.finish_reason)) for output in ended]
        self._preempted.difference_update(number for number, _ in finished)
        if self._recorder is None or not (stamp or (finished and self._recorder.level)):
            return
        if stamp is not None:
            for bag in bags.values():
                bag.step_trace = SpanContext(stamp.trace_id, new_span_id(), sampled=True).traceparent()
        step = -1 if stamp is None else stamp.step
        self._recorder.append(Update(step, t0, t1, finished, len(bags), [row for row in stale if row[1]]))
        self._recorder.flush()

    def leave(self, number: int, request_id: str, reason: str, status: str) -> None:
        """Traced request `number` leaves the core outside a step, while it was waiting, running or preempted."""
        self._live.pop(request_id, None)
        self._preempted.discard(number)
        if self._recorder is not None:
            self._recorder.append(Leave(number, now_ns(), reason, status))
            self._recorder.flush()

    def served(self, call: UtilityCall, t0: int, error: BaseException | None) -> None:
        """A utility call that was begun at `t0` is answered."""
        caller = parse_traceparent(call.traceparent)
        if caller is not None and self._recorder is not None:
            ids, times = (caller.trace_id, caller.span_id, new_span_id()), (call.t_received, t0, now_ns())
            self._recorder.append(Serve(call.call_id, call.client_index, call.method, *ids, *times, described(error)))
            self._recorder.flush()

    def phase(self, name: str, t0: int, t1: int | None = None) -> None:
        """A stretch of the engine core's own life is over."""
        if self._recorder is not None:
            self._recorder.phase(name, t0, t1)

    def close(self, t0: int, error: BaseException | None) -> None:
        """The engine core's end began at `t0` and is over; `error` is why it came."""
        if self._recorder is not None:
            self._recorder.phase("shutdown", t0, error=error)
            self._recorder.close()
            self._recorder = None

    def _wants(self, plan: SchedulerOutput) -> bool:
        if self._trace_steps == "sampled":
            live = self._live
            return bool(live) and any(request_id in live for request_id in plan.num_scheduled_tokens)
        if self._trace_steps in ("all", "off"):
            return self._trace_steps == "all"
        return random.random() < float(self._trace_steps)
