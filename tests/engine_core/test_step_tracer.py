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
from vllm_lite.tracing.records import Bye, Execute, Leave, Receive, ReceiveAbort, Record, Schedule, Send, Update
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
    bags, _ = core.step()
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
    core.model_executor.execute_model = lambda plan, non_block: (seen.append(plan.step_trace), execute_model(plan, non_block))[
        1
    ]  # type: ignore[method-assign, assignment]
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


def test_without_a_sampled_request_nothing_is_recorded(run_dir: Path) -> None:
    core = make_core(run_dir)
    add(core, "a", None)
    bags, _ = core.step()
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


def test_the_level_is_read_before_each_step(run_dir: Path) -> None:
    core = make_core(run_dir)
    add(core, "a", 1, max_tokens=3)
    core.step()
    set_level(run_dir, 0)
    assert core.step()[0][0].step_trace is None
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
        bags, _ = core.step_fn()
        sent += [parse_traceparent(bag.step_trace) for bag in bags.values() if bag.step_trace is not None]
    schedules, executes, updates = (read(run_dir, "main", kind) for kind in (Schedule, Execute, Update))
    assert [schedule.step for schedule in schedules] == [execute.step for execute in executes] == [0, 1, 2, 3]
    assert [update.step for update in updates] == [0, 1, 2, 3]
    assert [schedule.prefills for schedule in schedules] == [[1], [], [], []]
    assert schedules[1].t0 < updates[0].t0  # planned before the first result was looked at
    assert [context.trace_id for context in sent if context is not None] == [schedule.trace_id for schedule in schedules]
    assert [update.finished for update in updates] == [[], [], [], [(1, "length")]]
    core.shutdown()
