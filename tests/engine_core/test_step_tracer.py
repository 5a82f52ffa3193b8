"""What the engine core records of a journey, in process and over sockets."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.engine_core.core_process import CoreProcess, add_letter, toy_config
from tests.engine_core.spools import read
from vllm_lite.config import VllmConfig
from vllm_lite.engine_core.core import EngineCore
from vllm_lite.engine_core.executor.toy import ToyExecutor
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.tracing.context import parse_traceparent
from vllm_lite.tracing.control_page import ControlPage
from vllm_lite.tracing.records import Bye, Execute, Leave, Phase, Receive, ReceiveAbort, Record, Schedule, Send, Serve, Update
from vllm_lite.wire.messages import EngineCoreAbort, EngineCoreRequestType

PROMPT = list(b"the quick brown fox")
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01", "tracestate": "x=1"}
UNSAMPLED = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-00"}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    ControlPage.create(tmp_path, 1).close()
    return tmp_path


def traced_config(run_dir: Path, trace_steps: str = "sampled") -> VllmConfig:
    config = toy_config()
    config.observability_config.trace_dir = str(run_dir)
    config.observability_config.trace_steps = trace_steps
    return config


def set_level(run_dir: Path, level: int) -> None:
    page = ControlPage.open(run_dir)
    page.level = level
    page.close()


def make_core(run_dir: Path, trace_steps: str = "sampled") -> EngineCore:
    return EngineCore(traced_config(run_dir, trace_steps), ToyExecutor)


def add(core: EngineCore, request_id: str, trace: int | None, max_tokens: int = 2) -> None:
    request = core.preprocess_add_request(add_letter(request_id, PROMPT, SamplingParams(max_tokens=max_tokens)))
    request.trace = trace
    core.add_request(request)


def test_a_step_is_one_frame_of_three_records_whose_ids_and_times_agree(run_dir: Path) -> None:
    core = make_core(run_dir)
    add(core, "a", 7)
    add(core, "b", None)
    before = time.monotonic_ns()
    bags = core.step()
    after = time.monotonic_ns()
    (schedule,), (execute,), (update,) = (read(run_dir, "main", kind) for kind in (Schedule, Execute, Update))
    assert (schedule.step, execute.step, update.step) == (0, 0, 0)
    assert before <= schedule.t0 <= schedule.t1 <= execute.t0 <= execute.t1 <= update.t0 <= update.t1 <= after
    assert (schedule.reqs, schedule.tokens, schedule.prefills, schedule.new) == ([7], [19], [7], [(7, 0)])
    assert (schedule.num_requests, schedule.num_prefill, schedule.num_tokens) == (2, 2, 22)  # b shares four blocks
    assert (schedule.num_running, schedule.num_waiting, schedule.preempted) == (2, 0, [])
    assert schedule.kv_usage == pytest.approx(6 / 99)
    assert (update.finished, update.num_bags) == ([], len(bags)) == ([], 1)
    bag = parse_traceparent(bags[0].step_trace)
    assert bag is not None
    assert bag.trace_id == schedule.trace_id
    assert core.step_tracer.step_span_id == schedule.span_id
    assert len({schedule.span_id, execute.span_id, bag.span_id}) == 3


def test_the_worker_runs_under_the_execute_span(run_dir: Path) -> None:
    core = make_core(run_dir)
    add(core, "a", 1)
    seen = []
    execute_model = core.model_executor.execute_model
    core.model_executor.execute_model = lambda plan: (seen.append(plan.step_trace), execute_model(plan))[1]  # type: ignore[method-assign, assignment]
    core.step()
    (schedule,), (execute,) = read(run_dir, "main", Schedule), read(run_dir, "main", Execute)
    assert seen == [f"00-{schedule.trace_id}-{execute.span_id}-01"]


def test_a_decode_is_no_prefill_and_an_end_is_named_once(run_dir: Path) -> None:
    core = make_core(run_dir)
    add(core, "a", 1)
    while core.scheduler.has_requests():
        core.step()
    first, second = read(run_dir, "main", Schedule)
    assert (second.prefills, second.num_prefill, second.new, second.tokens) == ([], 0, [], [1])
    assert first.trace_id != second.trace_id  # every step is a trace of its own
    assert [update.finished for update in read(run_dir, "main", Update)] == [[], [(1, "length")]]
    core.shutdown()
    assert len(read(run_dir, "main", Bye)) == 1


def test_preemption_and_return_are_in_the_steps(run_dir: Path) -> None:
    core = make_core(run_dir)
    add(core, "a", 5, max_tokens=3)
    core.step()
    assert core.reset_prefix_cache(reset_running_requests=True)
    core.step()
    second = read(run_dir, "main", Schedule)[1]
    assert (second.preempted, second.new, second.tokens, second.prefills) == ([5], [(5, 0)], [20], [5])


def test_a_preemption_that_an_unrecorded_step_tells_the_worker_is_in_the_next(run_dir: Path) -> None:
    core = make_core(run_dir)
    add(core, "a", 5, max_tokens=3)
    add(core, "b", None)
    add(core, "c", 6)
    core.step()
    core.pause_scheduler("keep", clear_cache=True)
    core.abort_requests(["b", "c"])
    core.step()  # no tokens, only news
    core.resume_scheduler()
    core.step()
    first, second = read(run_dir, "main", Schedule)
    assert (second.step - first.step, second.preempted, second.new, second.prefills) == (2, [5], [(5, 0)], [5])


def test_gap_14_what_room_cost_is_counted_from_one_recorded_step_to_the_next(run_dir: Path) -> None:
    """Seven blocks: two requests of five do not fit; the second takes the first one's cached blocks when that has ended."""
    config = traced_config(run_dir)
    config.cache_config.num_gpu_blocks_override, config.model_config.max_model_len = 8, 28
    core = EngineCore(config, ToyExecutor)
    for number, prompt in enumerate((PROMPT, [5] * len(PROMPT)), 1):
        request = core.preprocess_add_request(add_letter(f"r{number}", prompt, SamplingParams(max_tokens=2)))
        request.trace = number
        core.add_request(request)
    while core.scheduler.has_requests():
        core.step()
    steps = read(run_dir, "main", Schedule)
    assert [(step.reqs, step.num_refused, step.refused) for step in steps] == [
        ([1], 1, []),
        ([1], 1, []),
        ([2], 0, [(2, 2)]),
        ([2], 0, []),
    ]
    assert [step.num_evicted for step in steps] == [0, 0, 3, 0]
    core.shutdown()


def test_gap_28_what_was_made_for_one_who_is_gone_is_counted(run_dir: Path) -> None:
    config = traced_config(run_dir)
    config.scheduler_config.async_scheduling = True
    core = EngineCore(config, ToyExecutor)
    for number, name in enumerate(("stays", "goes"), 1):
        add(core, name, number, max_tokens=4)
    core.step()  # planned, and not looked at yet
    core.abort_requests(["goes"])
    while core.has_work():
        core.step()
    assert [update.stale for update in read(run_dir, "main", Update)] == [[("goes", 1)], [], [], []]
    core.shutdown()


def test_without_a_sampled_request_nothing_is_recorded(run_dir: Path) -> None:
    core = make_core(run_dir)
    add(core, "a", None)
    bags = core.step()
    assert bags[0].step_trace is None
    assert core.step_tracer.step_span_id is None
    assert list(run_dir.glob("*.vlt")) == []


@pytest.mark.parametrize(("trace_steps", "recorded"), [("all", 2), ("off", 0), ("0.0", 0), ("1.0", 2)])
def test_steps_can_be_sampled_on_their_own(run_dir: Path, trace_steps: str, recorded: int) -> None:
    core = make_core(run_dir, trace_steps)
    add(core, "a", 3 if trace_steps == "off" else None)
    while core.scheduler.has_requests():
        core.step()
    assert len(read(run_dir, "main", Schedule)) == recorded
    assert all(schedule.reqs == [] for schedule in read(run_dir, "main", Schedule))


@pytest.mark.parametrize(("level", "told"), [(1, [(-1, [(3, "length")])]), (0, [])])
def test_an_end_in_a_step_that_is_not_recorded_is_told(run_dir: Path, level: int, told: list[object]) -> None:
    core = make_core(run_dir, "off")
    add(core, "a", 3)
    set_level(run_dir, level)
    while core.scheduler.has_requests():
        core.step()
    assert [(update.step, update.finished) for update in read(run_dir, "main", Update)] == told


def test_the_level_is_read_before_each_step(run_dir: Path) -> None:
    core = make_core(run_dir)
    add(core, "a", 1, max_tokens=3)
    core.step()
    set_level(run_dir, 0)
    assert core.step()[0].step_trace is None
    set_level(run_dir, 3)
    core.step()
    assert [schedule.step for schedule in read(run_dir, "main", Schedule)] == [0, 2]
    assert read(run_dir, "main", Update)[-1].finished == [(1, "length")]


def test_a_departure_outside_a_step_says_what_the_request_was_doing(run_dir: Path) -> None:
    core = make_core(run_dir)
    for number, name in enumerate(("run", "preempted", "plain"), 1):
        add(core, name, number if name != "plain" else None, max_tokens=50)
    core.step()
    core.reset_prefix_cache(reset_running_requests=True)
    add(core, "waiting", 4)
    core.abort_requests(["preempted", "waiting", "plain", "unknown", "waiting"], "stop_string")
    core.step()
    core.abort_requests(None, "shutdown")
    leaves = read(run_dir, "main", Leave)
    assert [(leave.req, leave.reason, leave.status) for leave in leaves] == [
        (2, "stop_string", "preempted"),
        (4, "stop_string", "waiting"),
        (1, "shutdown", "running"),
    ]
    assert [leave.t for leave in leaves] == sorted(leave.t for leave in leaves)


# ---- over sockets ----------------------------------------------------------------------------------------------------------


def test_a_whole_journey_through_the_process(run_dir: Path) -> None:
    with CoreProcess(traced_config(run_dir)) as core:
        core.start()
        before = time.monotonic_ns()
        core.add("a", PROMPT, trace_headers=SAMPLED)
        core.add("b", PROMPT, trace_headers=UNSAMPLED)
        core.add("c", PROMPT, trace_headers={"traceparent": "garbage"})
        core.answers("a", "b", "c")
        core.stop()
        after = time.monotonic_ns()
    (receive,) = read(run_dir, "input", Receive)
    assert (receive.req, receive.internal_id, receive.trace_id, receive.parent_span_id) == (1, "a", TRACE_ID, SPAN_ID)
    assert before <= receive.t0 <= receive.t1 <= after
    assert receive.body_size > 50
    schedules, sends = read(run_dir, "main", Schedule), read(run_dir, "output", Send)
    assert [schedule.reqs for schedule in schedules] == [[1]] * 5
    updates = {update.step: update for update in read(run_dir, "main", Update)}
    for schedule, send in zip(schedules, sends, strict=True):
        assert (send.trace_id, send.parent_span_id, send.client_index) == (schedule.trace_id, schedule.span_id, 0)
        assert updates[schedule.step].t1 <= send.t_queued <= send.t0 <= send.t1 <= send.t2
        assert send.num_outputs in (1, 2, 3)
        assert send.body_size > 10
    ids = [record.span_id for record in (*schedules, *sends, receive)]
    assert len(ids) == len(set(ids))
    for thread in ("input", "main", "output"):
        assert len(read(run_dir, thread, Bye)) == 1


@pytest.mark.parametrize("lowered", [False, True])
def test_an_abort_is_received_with_its_senders_spans(run_dir: Path, lowered: bool) -> None:
    config = traced_config(run_dir)
    config.additional_config["toy_step_time"] = 0.01
    with CoreProcess(config) as core:
        core.start()
        core.add("a", PROMPT, SamplingParams(max_tokens=200), trace_headers=SAMPLED)
        core.bag()
        if lowered:  # what began is written to its end
            set_level(run_dir, 0)
        headers = {"a": f"00-{TRACE_ID}-{'1' * 16}-01"}
        core.send(EngineCoreRequestType.ABORT, EngineCoreAbort(["a", "untraced"], "client_disconnect", headers))
        core.send(EngineCoreRequestType.ABORT, EngineCoreAbort(["untraced"], "api"))
        core.add("last", PROMPT)
        core.answers("last")
        core.stop()
    (abort,) = read(run_dir, "input", ReceiveAbort)
    assert (abort.internal_ids, abort.reason, abort.headers) == (["a"], "client_disconnect", headers)
    (leave,) = read(run_dir, "main", Leave)
    assert (leave.req, leave.reason, leave.status) == (1, "client_disconnect", "running")
    assert leave.t >= abort.t
    assert len(read(run_dir, "output", Send)) == len(read(run_dir, "main", Schedule))


def test_a_rejected_request_is_received_and_leaves(run_dir: Path) -> None:
    with CoreProcess(traced_config(run_dir)) as core:
        core.start()
        core.add("bad", [], trace_headers=SAMPLED)
        assert core.answers("bad")["bad"][1] == "error"
        core.stop()
    (receive,), (leave,) = read(run_dir, "input", Receive), read(run_dir, "main", Leave)
    assert (receive.req, receive.internal_id) == (1, "bad")
    assert (leave.req, leave.reason, leave.status) == (1, "error", "waiting")


def test_gap_15_a_traced_call_is_served_under_its_callers_span(run_dir: Path) -> None:
    with CoreProcess(traced_config(run_dir)) as core:
        core.start()
        core.utility(1, "is_sleeping")  # not traced
        core.send(EngineCoreRequestType.UTILITY, [0, 2, "reset_prefix_cache", [], SAMPLED["traceparent"]])
        core.send(EngineCoreRequestType.UTILITY, [0, 3, "no_such_method", [], SAMPLED["traceparent"]])
        for _ in range(3):
            core.bag()
        core.stop()
    fine, failed = read(run_dir, "main", Serve)
    assert (fine.call_id, fine.method, fine.error) == (2, "reset_prefix_cache", None)
    assert (failed.call_id, failed.error) == (3, ("NotImplementedError", "the engine core has no method 'no_such_method'"))
    for serve in (fine, failed):
        assert (serve.client_index, serve.trace_id, serve.parent_span_id) == (0, TRACE_ID, SPAN_ID)
        assert 0 < serve.t_received <= serve.t0 <= serve.t1


def test_gap_15_an_answer_that_waits_for_the_last_step_lasts_that_long(run_dir: Path) -> None:
    config = traced_config(run_dir)
    config.additional_config["toy_step_time"] = 0.01
    with CoreProcess(config) as core:
        core.start()
        core.add("a", PROMPT, trace_headers=SAMPLED)
        core.bag()  # it has begun; a pause would hold it back before
        core.send(EngineCoreRequestType.UTILITY, [0, 1, "pause_scheduler", ["wait"], SAMPLED["traceparent"]])
        core.answers("a")
        core.bag()
        core.stop()
    (serve,) = read(run_dir, "main", Serve)
    assert serve.t1 > read(run_dir, "main", Update)[-1].t1


@pytest.mark.parametrize("sampled", [True, False])
def test_an_engine_cores_own_life_is_recorded_where_that_is_sampled(run_dir: Path, sampled: bool) -> None:
    page = ControlPage.open(run_dir)
    page.life = sampled
    page.close()
    with CoreProcess(traced_config(run_dir)) as core:
        core.start()
        core.stop()
    phases = read(run_dir, "main", Phase)
    names = ["build_executor", "initialize_kv_caches", "handshake", "engine_core.start", "drain", "shutdown"]
    assert [phase.name for phase in phases] == (names if sampled else [])
    assert {phase.error for phase in phases} <= {None}
    if sampled:
        start = phases[3]
        assert all(start.t0 <= phase.t0 <= phase.t1 <= start.t1 for phase in phases[:3])
        assert start.t1 <= phases[4].t0 <= phases[4].t1 <= phases[5].t0


def test_gap_19_what_ended_an_engine_core_is_recorded(run_dir: Path) -> None:
    page = ControlPage.open(run_dir)
    page.life = True
    page.close()
    config = traced_config(run_dir)
    config.additional_config["toy_crash_at_step"] = 0
    with CoreProcess(config) as core:
        core.start()
        core.add("a", PROMPT, trace_headers=SAMPLED)
        assert core.wait() == 1
    end = read(run_dir, "main", Phase)[-1]
    assert (end.name, end.error) == ("shutdown", ("RuntimeError", "the toy was told to crash at step 0"))


def test_at_level_0_a_sampled_request_leaves_no_file(run_dir: Path) -> None:
    set_level(run_dir, 0)
    with CoreProcess(traced_config(run_dir)) as core:
        core.start()
        core.add("a", PROMPT, trace_headers=SAMPLED)
        core.answers("a")
        core.stop()
    assert read(run_dir, "*", Record) == []
    assert list(run_dir.glob("*.vlt")) == []


def test_every_bag_that_came_before_a_sigkill_is_in_the_spool_but_perhaps_the_last(run_dir: Path) -> None:
    config = traced_config(run_dir)
    config.additional_config["toy_step_time"] = 0.001
    with CoreProcess(config) as core:
        core.start()
        core.add("a", PROMPT, SamplingParams(max_tokens=200), trace_headers=SAMPLED)
        bags = [core.bag() for _ in range(20)]
        core.child.kill()
        core.wait()
    recorded = {send.span_id for send in read(run_dir, "output", Send)}
    received = [parse_traceparent(bag.step_trace) for bag in bags]
    assert [context.span_id in recorded for context in received if context][:-1] == [True] * 19


def test_steps_planned_ahead_keep_their_own_ids_and_times(run_dir: Path) -> None:
    config = traced_config(run_dir)
    config.scheduler_config.async_scheduling = True
    core = EngineCore(config, ToyExecutor)
    add(core, "a", 1, max_tokens=4)
    sent = []
    while core.has_work():
        bags = core.step()
        sent += [parse_traceparent(bag.step_trace) for bag in bags.values() if bag.step_trace is not None]
    schedules, executes, updates = (read(run_dir, "main", kind) for kind in (Schedule, Execute, Update))
    assert [schedule.step for schedule in schedules] == [execute.step for execute in executes] == [0, 1, 2, 3]
    assert [update.step for update in updates] == [0, 1, 2, 3]
    assert [schedule.prefills for schedule in schedules] == [[1], [], [], []]
    assert schedules[1].t0 < updates[0].t0  # planned before the first result was looked at
    assert [context.trace_id for context in sent if context is not None] == [schedule.trace_id for schedule in schedules]
    assert [update.finished for update in updates] == [[], [], [], [(1, "length")]]
    core.shutdown()
