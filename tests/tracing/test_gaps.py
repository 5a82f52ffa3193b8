"""What vLLM's own tracing does not show, gap by gap, and what broke for others (T): each on the records of one real engine."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.tracing.journeys import CALLER_SPAN, CALLER_TRACE, SHARED, Recorded
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.check import check_run
from vllm_lite.tracing.spans import Kind, Span
from vllm_lite.tracing.spans.environment import resource_attributes

GIVEN_UP = ["running 0", "running 1", "running 2", "running 3", "waiting 0", "waiting 1", "waiting 2"]


@pytest.mark.parametrize("name", ["told", "died", "worked", "called", "balanced"])
def test_every_rule_holds(request: pytest.FixtureRequest, name: str) -> None:
    recorded: Recorded = request.getfixturevalue(name)
    assert {finding.rule: finding.failures for finding in check_run(recorded.run) if not finding.ok} == {}


@pytest.mark.parametrize("name", GIVEN_UP)
def test_gap_01_t2_who_was_given_up_has_a_span_that_says_so(told: Recorded, name: str) -> None:
    root = told.root(name)
    assert (root.attributes["vllm_lite.outcome"], root.attributes["error.type"]) == ("aborted", "aborted")
    assert root.error == "aborted"
    assert root.attributes["gen_ai.response.finish_reasons"] == ["abort"]


@pytest.mark.parametrize(
    ("name", "outcome", "error_type", "word"),
    [
        ("invalid", "invalid", "VLLMValidationError", "512"),
        ("turned away", "rejected", "QueueOverflowError", "max_num_queued_reqs"),
        ("failed", "error", "EngineGenerateError", "7"),
    ],
)
def test_gap_02_t2_refusals_and_failures_are_error_spans_with_their_message(
    told: Recorded, name: str, outcome: str, error_type: str, word: str
) -> None:
    root = told.root(name)
    assert (root.attributes["vllm_lite.outcome"], root.attributes["error.type"]) == (outcome, error_type)
    assert root.error is not None
    assert word in root.error


def test_gap_02_t2_a_dead_engine_ends_every_span_as_an_error(died: Recorded) -> None:
    roots = [died.root(f"dying {number}") for number in range(2)]
    assert [root.attributes["error.type"] for root in roots] == ["engine_dead"] * 2
    assert all(root.error for root in roots)
    assert {span.attributes["error.type"] for span in died.named("process engine_core.inputs")} == {"engine_dead"}


def test_gap_03_how_an_answer_ended_is_on_its_span(told: Recorded) -> None:
    stopped, plain = told.root("stopped").attributes, told.root("plain").attributes
    assert (stopped["gen_ai.response.finish_reasons"], plain["gen_ai.response.finish_reasons"]) == (["stop"], ["length"])
    assert str(stopped["vllm_lite.stop_reason"]).islower()
    assert "vllm_lite.stop_reason" not in plain
    assert told.root("stopped").error is None


@pytest.mark.parametrize("name", ["running 2", "running 3", "waiting 1", "waiting 2", "failed"])
def test_gap_04_what_the_engine_core_itself_ended_has_its_parent_and_true_times(told: Recorded, name: str) -> None:
    root, [stay] = told.root(name), told.below(name, "process engine_core.inputs")
    sender = told.by_id[stay.parent_span_id or ""]
    assert (sender.name, sender.parent_span_id) == ("send engine_core.inputs", root.span_id)
    assert root.start <= sender.start <= stay.start <= stay.end
    assert stay.end - stay.start < 60e9


def test_gap_05_t1_tracing_needs_no_figures(balanced: Recorded) -> None:
    roots = [balanced.root(name) for name in balanced.tokens]
    assert [root.attributes["vllm_lite.outcome"] for root in roots] == ["finished"] * 3
    assert all(float(str(root.attributes["vllm_lite.queue_time"])) >= 0 for root in roots)


def test_gap_06_t3_three_answers_are_one_request_with_three_samples(told: Recorded) -> None:
    root = told.root("three answers")
    samples = [span for span in told.children(root) if span.name.startswith("sample ")]
    assert [span.attributes["vllm_lite.sample.index"] for span in samples] == [0, 1, 2]
    assert root.attributes["gen_ai.request.choice.count"] == 3
    assert root.attributes["gen_ai.usage.output_tokens"] == 12 == told.tokens["three answers"]
    stays = told.below("three answers", "process engine_core.inputs")
    assert {told.by_id[told.by_id[stay.parent_span_id or ""].parent_span_id or ""].name for stay in stays} == {
        "sample 0",
        "sample 1",
        "sample 2",
    }


def test_gap_07_preemption_and_queueing_again(told: Recorded) -> None:
    again = [name for name in told.tokens if name.startswith("crowd") and len(told.journey(name).stays[0].spells) > 1]
    assert again
    for name in again:
        [stay] = told.below(name, "process engine_core.inputs")
        times = [told.below(name, f"request.{phase}") for phase in ("queued", "prefill", "decode")]
        assert [len(spans) for spans in times] == [stay.attributes["vllm_lite.preemptions"] + 1] * 3  # type: ignore[operator]
        assert {event.name for event in stay.events} == {"request.preempted"}
        queued = sum(span.end - span.start for span in times[0])
        assert told.root(name).attributes["vllm_lite.queue_time"] == queued / 1e9


def test_gap_08_steps_are_spans_linked_to_their_requests_both_ways(told: Recorded) -> None:
    steps = told.named("engine_core.step")
    crowded = [span for span in steps if span.attributes["vllm_lite.num_requests"] == 4]
    assert crowded
    for span in crowded:
        assert len(span.links) == 4
        assert {told.by_id[link.span_id].name.split()[0] for link in span.links} == {"text_completion"}
    of_one = told.below("plain", "request.step")
    linked = [span for span in steps if any(link.span_id == told.root("plain").span_id for link in span.links)]
    assert {link.span_id for span in of_one for link in span.links} == {span.span_id for span in linked}
    assert len(of_one) == 8


def test_gap_09_hops_between_processes(told: Recorded) -> None:
    for name, size in (("send engine_core.inputs", 20), ("send engine_core.outputs", 5)):
        sent = told.named(name)
        assert all(int(str(span.attributes["messaging.message.body.size"])) > size for span in sent)
        assert {span.kind for span in sent} == {Kind.PRODUCER}
    opened = told.named("process engine_core.outputs")
    assert all(float(str(span.attributes["vllm_lite.wire_us"])) >= 0 for span in opened)
    assert all(float(str(span.attributes["vllm_lite.decode_us"])) > 0 for span in opened)
    assert all(float(str(span.attributes["vllm_lite.queued_us"])) >= 0 for span in told.named("send engine_core.outputs"))


def test_gap_10_tokenisation_is_a_span(told: Recorded) -> None:
    [span] = told.below("long prompt", "input_processor.process_inputs")
    assert span.end > span.start
    assert (
        span.attributes["gen_ai.usage.input_tokens"] == told.root("long prompt").attributes["gen_ai.usage.input_tokens"] == 150
    )
    assert told.below("invalid", "input_processor.process_inputs") == []


def test_gap_11_what_lay_in_the_mailbox_and_how_long(told: Recorded) -> None:
    [mailbox] = told.below("slow", "mailbox")
    counts = Counter(event.name for event in mailbox.events)
    attributes = told.root("slow").attributes
    assert counts["collector.merge"] == attributes["vllm_lite.staples"]
    assert counts["collector.put"] + counts["collector.merge"] == attributes["vllm_lite.puts"] == 30
    assert counts["collector.take"] == attributes["vllm_lite.takes"]
    assert counts["collector.merge"] > 0
    waits = [float(str(event.attributes["wait_us"])) for event in mailbox.events if event.name == "collector.take"]
    assert max(waits) > 1000


def test_gap_12_sorting_is_spans_by_slice(told: Recorded) -> None:
    slices = told.named("output_processor.slice")
    assert all(span.end > span.start for span in slices)
    bags = {
        span.span_id: span.attributes["messaging.batch.message_count"] for span in told.named("process engine_core.outputs")
    }
    sizes: Counter[str] = Counter()
    for span in slices:
        sizes[span.parent_span_id or ""] += int(str(span.attributes["vllm_lite.slice.size"]))
    assert sizes == Counter({span_id: count for span_id, count in bags.items() if count})


def test_gap_14_cached_tokens_and_chunks(told: Recorded) -> None:
    [again] = told.below("again", "request.prefill")
    assert again.attributes["vllm_lite.num_cached_tokens"] == 48
    assert told.root("again").attributes["gen_ai.usage.cache_read.input_tokens"] == 48
    assert again.attributes["vllm_lite.num_computed_tokens"] == len(SHARED) - 48
    [long_one] = told.below("long prompt", "request.prefill")
    assert (long_one.attributes["vllm_lite.chunks"], long_one.attributes["vllm_lite.num_computed_tokens"]) == (3, 150)
    assert len(long_one.links) == 3
    usage = [float(str(span.attributes["vllm_lite.kv.usage"])) for span in told.named("engine_core.step")]
    assert 0.9 < max(usage) <= 1.0
    assert sum(int(str(span.attributes["vllm_lite.preempted"])) for span in told.named("engine_core.step")) > 0


def test_gap_14_evictions_and_blocks_that_could_not_be_had(told: Recorded) -> None:
    steps = told.named("engine_core.step")
    assert sum(int(str(span.attributes["vllm_lite.blocks_evicted"])) for span in steps) > 0
    refused = sum(int(str(span.attributes["vllm_lite.blocks_refused"])) for span in steps)
    stays = [span for span in told.named("process engine_core.inputs") if "vllm_lite.blocks_refused" in span.attributes]
    assert 0 < sum(int(str(span.attributes["vllm_lite.blocks_refused"])) for span in stays) <= refused
    assert {told.named("process engine_core.inputs")[0].name} == {span.name for span in stays}


def test_gap_15_calls_are_pairs_of_spans_that_name_each_other(told: Recorded, called: Recorded) -> None:
    for recorded, methods in (
        (told, ["pause_scheduler", "resume_scheduler"]),
        (called, ["sleep", "wake_up", "reset_prefix_cache", "collective_rpc", "collective_rpc", "is_sleeping"]),
    ):
        callers = [span for span in recorded.spans if span.kind is Kind.CLIENT and "rpc.method" in span.attributes]
        assert [span.name for span in callers] == [f"engine_core/{method}" for method in methods]
        for caller in callers:
            [served] = recorded.children(caller)
            assert (served.name, served.kind, served.process.role) == (caller.name, Kind.SERVER, "engine-core")
            assert [link.span_id for link in caller.links] == [served.span_id]
            assert served.attributes["vllm_lite.call_id"] == caller.attributes["vllm_lite.call_id"]
            assert caller.start <= served.start


def test_gap_15_d12_a_time_out_names_method_and_rank(called: Recorded) -> None:
    late, given_up = [span for span in called.named("engine_core/collective_rpc") if span.kind is Kind.CLIENT]
    [served] = called.children(late)
    assert served.attributes["error.type"] == "TimeoutError"
    assert served.error == "worker 0 did not answer sleep_for within 0.05 s"
    assert served.error in str(late.error)
    assert given_up.attributes["error.type"] == "CancelledError"
    [served] = called.children(given_up)
    assert (served.error, served.end > given_up.end) == (None, True)


def test_gap_16_execution_is_a_span_of_the_executor_and_of_the_worker(worked: Recorded) -> None:
    spans = worked.named("worker.execute_model")
    assert len(spans) == len(worked.named("engine_core.step")) == 3
    for span in spans:
        parent = worked.by_id[span.parent_span_id or ""]
        assert (parent.name, parent.process.role, span.process.role) == ("executor.execute_model", "engine-core", "worker")
        assert [child.name for child in worked.children(span)] == ["worker.prepare", "worker.forward", "worker.sample"]


def test_gap_17_28_what_came_too_late_is_seen(told: Recorded) -> None:
    """A stop string, an abort: the engine core may make some tokens too many before it hears of it."""
    [receipt] = told.below("stopped", "process engine_core.abort")
    assert receipt.attributes["vllm_lite.abort.reason"] == "stop_string"
    late = told.root("stopped").attributes["vllm_lite.late"]
    assert receipt.attributes["vllm_lite.late_outputs"] == late
    bags = sum(int(str(span.attributes["vllm_lite.num_late"])) for span in told.named("process engine_core.outputs"))
    requests = sum(
        int(str(told.root(request.accept.external_id).attributes["vllm_lite.late"])) for request in told.run.requests
    )
    assert bags == requests
    events = [
        event for span in told.named("process engine_core.outputs") for event in span.events if event.name == "letter.late"
    ]
    assert len(events) == bags


def test_gap_18_which_engine_core_and_why_is_on_the_send_span(balanced: Recorded) -> None:
    def choice(name: str) -> list[object]:
        [sent] = balanced.below(name, "send engine_core.inputs")
        return [sent.attributes[f"vllm_lite.engine_{what}"] for what in ("index", "choice", "scores")]

    assert choice("asked") == [1, "asked", [0.0, 0.0]]
    first, second = choice("any 0"), choice("any 1")
    assert (first[1], second[1]) == ("least_busy", "least_busy")
    for index, _, scores in (first, second):
        assert isinstance(index, int)
        assert isinstance(scores, list)
        assert scores[index] == min(scores)
    assert {first[0], second[0]} == {0, 1}
    pids = {span.process.pid for span in balanced.named("process engine_core.inputs")}
    assert len(pids) == 2


def test_gap_19_the_death_of_a_worker_is_what_ended_its_engine_core(called: Recorded) -> None:
    [end] = [span for span in called.named("shutdown") if span.process.role == "engine-core"]
    assert (end.attributes["error.type"], end.error) == ("RuntimeError", "worker 0 ended with exit code -9")
    [death] = called.named("engine_core.death")
    assert death.error is not None
    [last] = called.below("last", "process engine_core.inputs")
    assert last.attributes["error.type"] == "engine_dead"
    assert death.start >= end.start - 1e9


def test_gap_19_an_orderly_end_is_a_span_of_each_process(told: Recorded) -> None:
    ends = {(span.process.role, span.name): span.error for span in told.spans if span.name in ("drain", "shutdown")}
    assert ends == {("frontend", "shutdown"): None, ("engine-core", "drain"): None, ("engine-core", "shutdown"): None}


def test_gap_19_the_death_of_an_engine_is_a_span(died: Recorded) -> None:
    [death] = died.named("engine_core.death")
    assert (death.attributes["error.type"], death.attributes["vllm_lite.engine_index"]) == ("engine_dead", 0)
    assert all(died.root(f"dying {number}").end >= death.start for number in range(2))


def test_a_start_up_is_one_trace_down_to_the_workers_load(worked: Recorded) -> None:
    [root] = worked.named("engine.start")
    assert root.parent_span_id is None

    def path(span: Span) -> list[str]:
        return [] if span.parent_span_id is None else [*path(worked.by_id[span.parent_span_id]), span.name]

    tree = {"/".join(path(span)): span.process.role for span in worked.spans if span.trace_id == root.trace_id}
    core = "launch/engine_core.start"
    assert tree == {
        "": "frontend",
        "load_tokenizer": "frontend",
        "launch": "frontend",
        "ready": "frontend",
        core: "engine-core",
        f"{core}/handshake": "engine-core",
        f"{core}/build_executor": "engine-core",
        f"{core}/build_executor/load_weights": "worker",
        f"{core}/initialize_kv_caches": "engine-core",
        f"{core}/initialize_kv_caches/warm_up": "worker",
    }


def test_gap_20_what_is_defined_is_also_set(told: Recorded) -> None:
    attributes = told.root("plain").attributes
    assert attributes["gen_ai.response.model"] == attributes["gen_ai.request.model"]
    assert {"gen_ai.response.id", "gen_ai.response.time_to_first_chunk", "vllm_lite.queue_time"} <= attributes.keys()
    phases = [told.below("plain", f"request.{phase}") for phase in ("queued", "prefill", "decode")]
    assert [len(spans) for spans in phases] == [1, 1, 1]


def test_gap_21_one_clock_for_all_processes(told: Recorded) -> None:
    assert len({process.offset for process in told.run.processes}) == 1
    now = max(span.end for span in told.spans)
    assert abs(now - told.run.path.stat().st_mtime_ns) < 60e9


def test_gap_22_each_token_is_an_event(told: Recorded) -> None:
    for name in ("plain", "slow", "stopped", "three answers"):
        events = [event for event in told.root(name).events if event.name == "gen_ai.token.generated"]
        assert sum(int(str(event.attributes["n"])) for event in events) == told.tokens[name]
        assert events[0].attributes["index"] == 0
        assert [event.t for event in events] == sorted(event.t for event in events)


def test_gap_24_a_session_of_two_parts_is_one_request(told: Recorded) -> None:
    root = told.root("in parts")
    assert (root.attributes["vllm_lite.outcome"], root.error) == ("finished", None)
    assert root.attributes["gen_ai.usage.output_tokens"] == told.tokens["in parts"] == 8
    stays = told.below("in parts", "process engine_core.inputs")
    assert {told.by_id[told.by_id[stay.parent_span_id or ""].parent_span_id or ""] is root for stay in stays} == {True}
    first, second = sorted(stays, key=lambda stay: stay.start)
    assert first.end <= second.start
    assert [span.attributes["gen_ai.response.finish_reasons"] for span in (first, second)] == [["length"]] * 2


def test_gap_25_nobody_elses_span_is_a_parent(balanced: Recorded) -> None:
    assert {balanced.root(name).parent_span_id for name in balanced.tokens} == {None}
    assert "1".rjust(32, "0") not in {span.trace_id for span in balanced.spans}


def test_gap_26_16_an_unsampled_request_is_not_there_and_nothing_hangs_on_it(told: Recorded) -> None:
    assert "unsampled" in told.tokens
    assert "unsampled" not in {request.accept.external_id for request in told.run.requests}
    assert "56" * 16 not in {span.trace_id for span in told.spans}


def test_gap_27_context_goes_in_once_and_comes_out_as_the_callers_own(told: Recorded) -> None:
    root = told.root("plain")
    assert (root.trace_id, root.parent_span_id, root.tracestate) == (CALLER_TRACE, CALLER_SPAN, "vendor=1")
    assert not any("user" in str(value) for value in root.attributes.values())  # baggage is passed on, never shown


def test_gap_28_tokens_made_for_one_who_is_gone_are_counted(called: Recorded) -> None:
    """Its next step was on its way when it stopped."""
    [stay] = called.below("stopped early", "process engine_core.inputs")
    assert stay.attributes["vllm_lite.stale_tokens"] == 1
    linked = called.journey("stopped early").stays[0].spells[0].steps
    steps = [span for span in called.named("scheduler.update_from_output") if span.attributes["vllm_lite.stale_tokens"]]
    assert steps[0].trace_id == linked[-1].schedule.trace_id


def test_t6_each_span_is_of_the_process_that_it_happened_in(worked: Recorded) -> None:
    pids = {process.role: resource_attributes(process, {})["process.pid"] for process in worked.run.processes}
    assert pids["frontend"] == os.getpid() != pids["engine-core"] == pids["worker"]
    for name, role in (("engine_core.step", "engine-core"), ("worker.forward", "worker"), ("mailbox", "frontend")):
        assert {span.process.role for span in worked.named(name)} == {role}


def test_t10_every_service_has_its_name(worked: Recorded) -> None:
    names = {process.role: resource_attributes(process, {})["service.name"] for process in worked.run.processes}
    assert names == {
        "frontend": "vllm-lite.frontend",
        "engine-core": "vllm-lite.engine-core",
        "worker": "vllm-lite.worker",
    }


def test_t19_zero_is_a_value(told: Recorded) -> None:
    assert told.root("plain").attributes["gen_ai.request.temperature"] == 0.0
    assert told.root("plain").attributes["gen_ai.usage.cache_read.input_tokens"] == 0


def test_t20_phases_stand_beside_each_other(told: Recorded) -> None:
    [stay] = told.below("plain", "process engine_core.inputs")
    [prefill], [decode] = told.below("plain", "request.prefill"), told.below("plain", "request.decode")
    assert prefill.parent_span_id == decode.parent_span_id == stay.span_id
    assert prefill.end <= decode.start


def test_every_request_that_entered_is_one_closed_span(told: Recorded, died: Recorded) -> None:
    """The one rule above all: whatever became of it."""
    for recorded in (told, died):
        names = Counter(request.accept.external_id for request in recorded.run.requests)
        assert set(names.values()) == {1}
        assert set(names) == set(recorded.tokens) - {"unsampled"} | ({"vector"} if recorded is told else set())
        assert all(request.num_closes == 1 for request in recorded.run.requests)
    assert Counter(r.close.outcome for r in told.run.requests if r.close) == {
        "finished": 12,
        "aborted": 7,
        "invalid": 1,
        "rejected": 1,
        "error": 1,
    }


def test_a_stay_ends_where_the_engine_core_says_so(told: Recorded) -> None:
    statuses = {name: told.journey(name).stays[0].leave for name in GIVEN_UP}
    assert {name: leave.reason for name, leave in statuses.items() if isinstance(leave, rec.Leave)} == {
        "running 0": "client_disconnect",
        "waiting 0": "client_disconnect",
        **dict.fromkeys(GIVEN_UP[1:4] + GIVEN_UP[5:], "api"),
    }
