"""Every traced request has one beginning and one end; an untraced one leaves nothing and is never passed on as traced."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontend.helpers import FINAL_ONLY
from vllm_lite import PoolingParams, RequestOutputKind, SamplingParams
from vllm_lite.exceptions import EngineDeadError, QueueOverflowError, VLLMValidationError
from vllm_lite.frontend.collector import RequestOutputCollector
from vllm_lite.frontend.core_client import Bag, Posted
from vllm_lite.frontend.stamps import BagStamp, Stamps, unsampled_headers
from vllm_lite.outputs import CompletionOutput, RequestOutput
from vllm_lite.tracing.control_page import ControlPage
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.journey.load import load_run
from vllm_lite.tracing.records import KEPT_BACK, STAPLED
from vllm_lite.tracing.request_trace import RequestTrace
from vllm_lite.tracing.run_dir import create_run_dir
from vllm_lite.wire.messages import EngineCoreOutput, EngineCoreOutputs

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1", "baggage": "k=v"}
UNSAMPLED = {**SAMPLED, "traceparent": f"00-{TRACE}-{SPAN}-00"}


class Fixture:
    def __init__(self, level: int) -> None:
        self.run_dir = create_run_dir(level)
        self.stamps = Stamps(self.run_dir, "a-model")

    def accept(self, headers: dict[str, str] | None = None, **params: Any) -> RequestTrace:
        trace = self.stamps.accept("mine", SamplingParams(**params), headers)
        assert trace is not None
        return trace

    def read(self) -> Run:
        self.stamps.shutdown()
        return load_run(self.run_dir)


@pytest.fixture
def level() -> int:
    return 2


@pytest.fixture
def made(level: int) -> Iterator[Fixture]:
    fixture = Fixture(level)
    yield fixture
    fixture.stamps.shutdown()


def test_a_request_begins(made: Fixture) -> None:
    trace = made.accept(SAMPLED, temperature=0.0, max_tokens=7, stop=["END"], seed=3, output_kind=FINAL_ONLY)
    (request,) = made.read().requests
    accept = request.accept
    assert (accept.external_id, accept.trace_id, accept.parent_span_id, accept.tracestate) == ("mine", TRACE, SPAN, "vendor=1")
    assert (accept.span_id, accept.operation, accept.model, accept.level) == (trace.span_id, "text_completion", "a-model", 2)
    assert accept.attributes == {
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.temperature": 0.0,  # a falsy value is a value
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.seed": 3,
        "gen_ai.request.stop_sequences": ["END"],
        "gen_ai.request.stream": False,
    }


def test_what_no_record_can_hold_costs_nothing_else(made: Fixture) -> None:
    """A request is accepted before it is checked."""
    params = SamplingParams(temperature=0.5)
    params.max_tokens, params.seed, params.top_k, params.stop = 2**70, np.int64(3), [object()], ["\ud800"]  # type: ignore[assignment]
    params.top_p = np.float64(0.5)
    trace = made.stamps.accept("\ud800", params, {**SAMPLED, "tracestate": "\udfff"})
    assert trace is not None
    made.stamps.close_request(trace, VLLMValidationError("no \ud800"))
    run = made.read()
    (request,) = run.requests
    assert (request.accept.external_id, request.accept.tracestate) == ("\\ud800", "\\udfff")
    assert request.accept.attributes == {
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.5,
        "gen_ai.request.stop_sequences": ["\\ud800"],
        "gen_ai.request.stream": True,
    }
    assert request.close is not None
    assert (request.close.outcome, request.close.error_message) == ("invalid", "no \\ud800")
    assert run.dropped == []


def test_without_headers_a_new_trace_begins(made: Fixture) -> None:
    first, second = made.accept(), made.accept()
    assert (first.req, second.req) == (1, 2)
    assert first.trace_id != second.trace_id
    assert [request.accept.parent_span_id for request in made.read().requests] == [None, None]


def test_embeddings_are_named(made: Fixture) -> None:
    assert made.stamps.accept("mine", PoolingParams(), None) is not None
    assert made.read().requests[0].accept.operation == "embeddings"


def test_parameters_of_wrong_types_do_not_stop_the_trace(made: Fixture) -> None:
    params = SamplingParams()
    params.temperature = object()  # type: ignore[assignment]
    assert made.stamps.accept(object(), params, None) is not None
    assert made.stamps.accept("mine", {"temperature": 0}, None) is not None  # type: ignore[arg-type]
    assert len(made.read().requests) == 2


@pytest.mark.parametrize(("level", "headers"), [(0, None), (0, SAMPLED), (2, UNSAMPLED)])
def test_what_is_not_sampled_is_not_recorded(made: Fixture, headers: dict[str, str] | None) -> None:
    assert made.stamps.accept("mine", SamplingParams(), headers) is None
    assert list(made.run_dir.glob("*.vlt")) == []


def test_the_count_limits_requests(made: Fixture) -> None:
    page = ControlPage.open(made.run_dir)
    page.count = 2
    page.close()
    assert [made.stamps.accept("r", SamplingParams(), None) is not None for _ in range(3)] == [True, True, False]


def test_the_level_can_change_while_the_engine_runs(made: Fixture) -> None:
    page = ControlPage.open(made.run_dir)
    page.level = 0
    assert made.stamps.accept("r", SamplingParams(), None) is None
    page.level = 3
    page.close()
    assert made.accept().level == 3


@pytest.mark.parametrize(
    ("headers", "passed_on"),
    [(None, None), ({}, None), (UNSAMPLED, UNSAMPLED), (SAMPLED, UNSAMPLED), ({"traceparent": "x"}, {"traceparent": "x"})],
)
def test_unsampled_headers_pass_unchanged_but_for_the_flag(headers: Any, passed_on: Any) -> None:
    assert unsampled_headers(headers) == passed_on


def test_tokenise_and_post(made: Fixture) -> None:
    trace = made.accept()
    made.stamps.tokenise(trace, 5, 12)
    made.stamps.post(trace, "mine-1", t0=6, span_id=SPAN, sample=0, posted=Posted(1, 99, "asked", [0.0, 2.0]))
    (request,) = made.read().requests
    assert [(part.t0, part.num_prompt_tokens) for part in request.tokenised] == [(5, 12)]
    (post,) = request.posts
    assert (post.internal_id, post.t0, post.span_id, post.body_size, post.sample) == ("mine-1", 6, SPAN, 99, 0)
    assert (post.engine_index, post.choice, post.scores) == (1, "asked", [0.0, 2.0])
    assert post.t1 > 6


# ---- bags ------------------------------------------------------------------------------------------------------------------


def filled(trace: RequestTrace | None, stamp: BagStamp | None = None) -> BagStamp:
    """A bag of four letters; one of them comes late, one's request is not traced."""
    stamp = stamp or BagStamp()
    req = trace.req if trace else 0
    stamp.reqs = [req, 0, req]
    rows = [EngineCoreOutput(name, [1] * count) for name, count in (("a", 1), ("b", 2), ("a", 1), ("gone-1", 3))]
    stamp.note_slice(rows, 1, {id(rows[3])}, {id(rows[1]): STAPLED, id(rows[2]): KEPT_BACK}, even=False)
    stamp.slices[0] = (1, 2, 4)
    return stamp


@pytest.mark.parametrize(("columns", "level"), [(([1, 0, 1], [1, 2, 1], "psk"), 2), (([], [], ""), 1)])
def test_a_bag_is_written_whole(made: Fixture, columns: tuple[list[int], list[int], str]) -> None:
    trace = made.accept()
    stamp = filled(trace, made.stamps.open_bag(EngineCoreOutputs()))
    made.stamps.sort(stamp, Bag(EngineCoreOutputs(1, step_trace=SAMPLED["traceparent"]), 10, 20, 300))
    sort = made.read().bags[0].sort
    assert (sort.bag, sort.engine_index, sort.trace, sort.t_received, sort.t_decoded) == (0, 1, SAMPLED["traceparent"], 10, 20)
    assert (sort.slices, sort.body_size, sort.num_outputs, sort.num_tokens) == ([(1, 2, 4)], 300, 4, 7)
    assert (sort.num_put, sort.num_stapled, sort.num_kept_back, sort.late) == (1, 1, 1, [("gone-1", 3)])
    assert (sort.reqs, sort.tokens, sort.fates) == columns


def test_bags_that_concern_nobody_traced_are_neither_counted_nor_written(made: Fixture) -> None:
    trace = made.accept()
    made.stamps.sort(filled(None), Bag(EngineCoreOutputs(), 0, 0, 0))
    made.stamps.sort(filled(trace), Bag(EngineCoreOutputs(), 0, 0, 0))
    made.stamps.sort(filled(None), Bag(EngineCoreOutputs(step_trace=SAMPLED["traceparent"]), 0, 0, 0))
    assert [b.sort.bag for b in made.read().bags] == [0, 1]


@pytest.mark.parametrize("level", [0])
def test_no_bag_is_opened_while_tracing_is_off(made: Fixture) -> None:
    assert made.stamps.open_bag(EngineCoreOutputs()) is None


# ---- ends ------------------------------------------------------------------------------------------------------------------


def test_an_abort_names_its_requests_and_carries_on_their_traces(made: Fixture) -> None:
    one, several = made.accept(), made.accept()
    for trace, ids in ((one, ["a"]), (several, ["0_b", "1_b"])):
        for sample, internal_id in enumerate(ids):
            made.stamps.post(trace, internal_id, t0=1, span_id=SPAN, sample=sample, posted=Posted(0, 1))
    headers = made.stamps.abort(["a", "0_b", "1_b", "untraced"], "api")
    assert sorted(headers) == ["0_b", "1_b", "a"]
    assert headers["0_b"] == headers["1_b"] != headers["a"]
    first, second = made.read().requests
    (abort,) = second.aborts
    assert (abort.reason, abort.internal_ids) == ("api", ["0_b", "1_b"])
    assert headers["0_b"] == f"00-{several.trace_id}-{abort.span_id}-01"
    assert [a.internal_ids for a in first.aborts] == [["a"]]


@pytest.mark.parametrize(
    ("reasons", "error", "outcome", "error_type"),
    [
        (["stop"], None, "finished", None),
        (["abort", "length"], None, "finished", None),
        (["abort"], None, "aborted", None),
        ([], None, "aborted", None),
        (["error"], None, "error", "EngineGenerateError"),
        (["abort"], asyncio.CancelledError(), "aborted", None),
        ([], GeneratorExit(), "aborted", None),
        ([], EngineDeadError("gone"), "engine_dead", "engine_dead"),
        ([], QueueOverflowError("full"), "rejected", "QueueOverflowError"),
        ([], VLLMValidationError("bad"), "invalid", "VLLMValidationError"),
        ([], NotImplementedError("later"), "error", "NotImplementedError"),
    ],
)
def test_how_a_request_ends(
    made: Fixture, reasons: list[str], error: BaseException | None, outcome: str, error_type: str | None
) -> None:
    trace = made.accept()
    trace.finish_reasons, trace.error_message = reasons, "why"
    made.stamps.close_request(trace, error)
    made.stamps.close_request(trace, EngineDeadError("too late"))
    (request,) = made.read().requests
    assert request.close is not None
    assert (request.close.outcome, request.close.finish_reasons, request.close.error_type) == (outcome, reasons, error_type)
    message = "why" if reasons == ["error"] else None if error_type is None else str(error)
    assert request.close.error_message == message


def test_what_is_open_at_the_end_is_closed(made: Fixture) -> None:
    trace = made.accept()
    mailbox = RequestOutputCollector(RequestOutputKind.DELTA, "r-1", trace, made.stamps)
    mailbox.put(RequestOutput("r", None, None, None, [CompletionOutput(0, "a", [97])], finished=False))
    run = made.read()
    assert [(r.close.outcome, r.close.left) for r in run.requests if r.close] == [("engine_dead", 1)]
    assert run.processes[0].ended
    made.stamps.close_request(trace)
    assert made.stamps.level == 0
    assert made.stamps.accept("late", SamplingParams(), None) is None


def test_a_death_is_noted(made: Fixture, tmp_path: Path) -> None:
    made.accept()
    made.stamps.engine_dead(3, "it was killed")
    assert [(death.engine_index, death.reason) for _, death in made.read().deaths] == [(3, "it was killed")]


def test_gap_15_a_call_is_noted_at_its_end_however_that_comes(made: Fixture) -> None:
    with made.stamps.call("sleep", 1, 7) as first:
        pass
    with pytest.raises(RuntimeError), made.stamps.call("wake_up", 0, 8):
        raise RuntimeError("no \ud800 memory")
    calls = [call.call[1] for call in made.read().calls if call.call is not None]
    assert [(call.method, call.engine_index, call.call_id, call.error) for call in calls] == [
        ("sleep", 1, 7, None),
        ("wake_up", 0, 8, ("RuntimeError", "no \\ud800 memory")),
    ]
    assert first == f"00-{calls[0].trace_id}-{calls[0].span_id}-01"
    assert calls[0].t0 <= calls[0].t1 <= calls[1].t0 <= calls[1].t1


@pytest.mark.parametrize(("level", "sampler"), [(0, "always_on"), (3, "always_off")])
def test_a_call_that_is_not_sampled_is_not_noted(monkeypatch: pytest.MonkeyPatch, level: int, sampler: str) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    made = Fixture(level)
    with made.stamps.call("sleep", 0, 1) as traceparent:
        assert traceparent is None
    made.stamps.phase("ready", 1)
    made.stamps.shutdown(5)
    assert list(made.run_dir.glob("*.vlt")) == []


def test_level_1_counts_what_level_2_would_have_noted_letter_by_letter() -> None:
    """One row came late, one letter was stapled and one kept back; two tokens in one row."""
    made = Fixture(1)
    made.accept()
    outputs = EngineCoreOutputs(2, step_trace=SAMPLED["traceparent"])
    stamp = made.stamps.open_bag(outputs)
    assert stamp is not None
    rows = [
        EngineCoreOutput(name, [1] * count) for name, count in zip(["a", "b", "c", "d", "gone"], (2, 1, 1, 1, 2), strict=True)
    ]
    stamp.note_slice(rows, 1, {id(rows[4])}, {id(rows[1]): STAPLED, id(rows[2]): KEPT_BACK}, even=False)
    made.stamps.sort(stamp, Bag(outputs, 10, 20, 300))
    (bag,) = made.read().bags
    sort = bag.sort
    assert sort is not None
    assert (sort.num_outputs, sort.num_tokens, sort.num_put, sort.num_stapled, sort.num_kept_back) == (5, 7, 2, 1, 1)
    assert (sort.reqs, sort.tokens, sort.fates, sort.late) == ([], [], "", [("gone", 2)])


@pytest.mark.parametrize(("level", "step_trace", "by_letter"), [(1, None, True), (1, "00-x", False), (2, "00-x", True)])
def test_letters_are_noted_where_they_are_needed(level: int, step_trace: str | None, by_letter: bool) -> None:
    made = Fixture(level)
    assert made.stamps.open_bag(EngineCoreOutputs()) is None  # nobody is traced
    made.accept()
    stamp = made.stamps.open_bag(EngineCoreOutputs(step_trace=step_trace))
    assert stamp is not None
    assert stamp.by_letter is by_letter
    made.stamps.shutdown()


def test_a_level_that_is_lowered_is_lowered_for_who_is_on_the_way(made: Fixture) -> None:
    page, ends = ControlPage.open(made.run_dir), {}
    for name, levels in {"lowered": (1, 3), "off": (0,), "raised": (3,)}.items():
        page.level = 2
        trace = made.stamps.accept(name, SamplingParams(), None)
        assert trace is not None
        for page.level in levels:
            made.stamps.open_bag(EngineCoreOutputs())
        made.stamps.close_request(trace)
    page.close()
    for request in made.read().requests:
        assert request.close is not None
        ends[request.accept.external_id] = request.close.level
    assert ends == {"lowered": 1, "off": 0, "raised": 2}


def test_a_bag_is_written_as_it_was_opened(made: Fixture) -> None:
    trace = made.accept()
    stamp = filled(trace, made.stamps.open_bag(EngineCoreOutputs()))
    made.stamps.close_request(trace)  # its caller had a turn between two slices
    page = ControlPage.open(made.run_dir)
    page.level = 1
    page.close()
    assert made.stamps.level == 1
    made.stamps.sort(stamp, Bag(EngineCoreOutputs(), 10, 20, 300))
    assert made.read().bags[0].sort.fates == "psk"


def test_a_shutdown_ends_who_still_waits_and_lets_the_answered_be(made: Fixture) -> None:
    traces = [made.accept() for _ in range(3)]
    for trace, internal_ids in zip(traces, (["a"], ["b", "c"], ["d"]), strict=True):
        for internal_id in internal_ids:
            made.stamps.post(trace, internal_id, t0=1, span_id="5" * 16, sample=0, posted=Posted(0, 9))
    traces[0].finish_reasons = ["length"]
    traces[1].finish_reasons = ["length"]  # one of its two answers
    ends = [request.close for request in made.read().requests]
    assert [end and (end.outcome, end.left_tokens) for end in ends] == [
        ("finished", -1),
        ("engine_dead", -1),
        ("engine_dead", -1),
    ]
