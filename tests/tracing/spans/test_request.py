from __future__ import annotations

from typing import Any

import pytest

from tests.tracing import make
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import RequestJourney, Run
from vllm_lite.tracing.process import Process
from vllm_lite.tracing.spans import Event, Kind, Span, request_spans


def named(request: RequestJourney, name: str) -> list[Span]:
    return [span for span in request_spans(request) if span.name == name]


def one(request: RequestJourney, name: str) -> Span:
    [span] = named(request, name)
    return span


def root(*records: rec.Record, process: Process | None = None, **accepted: Any) -> Span:
    front = process or make.front()
    return request_spans(make.request((front, make.accept(**accepted)), *((front, record) for record in records)))[0]


def test_the_tree_of_an_ordinary_request(canned: Run) -> None:
    ann = canned.requests[0]
    spans = request_spans(ann)
    names = {span.span_id: span.name for span in spans}
    tree = {(names.get(span.parent_span_id or ""), span.name, span.kind.name) for span in spans}
    assert tree == {
        (None, "text_completion canned-model", "SERVER"),
        ("text_completion canned-model", "input_processor.process_inputs", "INTERNAL"),
        ("text_completion canned-model", "send engine_core.inputs", "PRODUCER"),
        ("text_completion canned-model", "mailbox", "INTERNAL"),
        ("send engine_core.inputs", "process engine_core.inputs", "CONSUMER"),
        ("process engine_core.inputs", "request.queued", "INTERNAL"),
        ("process engine_core.inputs", "request.prefill", "INTERNAL"),
        ("process engine_core.inputs", "request.decode", "INTERNAL"),
        ("request.prefill", "request.step", "INTERNAL"),
        ("request.decode", "request.step", "INTERNAL"),
    }
    assert {span.trace_id for span in spans} == {ann.accept.trace_id}


def test_the_roots_attributes(canned: Run) -> None:
    span = request_spans(canned.requests[1])[0]
    first = span.attributes.pop("gen_ai.response.time_to_first_chunk")
    queued = span.attributes.pop("vllm_lite.queue_time")
    assert isinstance(first, float)
    assert isinstance(queued, float)
    assert 0 < queued < first < 1
    assert span.attributes == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "vllm-lite",
        "gen_ai.request.model": "canned-model",
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.stop_sequences": ["END"],
        "gen_ai.response.id": "bob",
        "gen_ai.response.model": "canned-model",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "vllm_lite.request.id": "bob",
        "vllm_lite.internal_id": "bob-00000002",
        "vllm_lite.outcome": "finished",
        "vllm_lite.stop_reason": "END",
        "vllm_lite.puts": 4,
        "vllm_lite.staples": 0,
        "vllm_lite.takes": 4,
        "vllm_lite.left": 0,
        "vllm_lite.kept_back": 0,
        "vllm_lite.late": 1,
    }
    assert span.error is None


def test_a_caller_with_a_span_of_its_own_is_the_parent() -> None:
    span = root(make.close(), parent_span_id="f" * 16, tracestate="a=1")
    assert (span.parent_span_id, span.remote_parent, span.tracestate) == ("f" * 16, True, "a=1")
    assert not root(make.close()).remote_parent


@pytest.mark.parametrize(
    ("closed", "error_type", "error"),
    [
        ({"outcome": "finished"}, None, None),
        ({"outcome": "aborted"}, "aborted", "aborted"),
        ({"outcome": "rejected", "error_type": "QueueOverflowError", "error_message": "full"}, "QueueOverflowError", "full"),
        ({"outcome": "invalid", "error_type": "VLLMValidationError", "error_message": "n"}, "VLLMValidationError", "n"),
        ({"outcome": "engine_dead"}, "engine_dead", "engine_dead"),
        ({"outcome": "error", "error_type": "EngineGenerateError"}, "EngineGenerateError", "error"),
    ],
)
def test_status_and_type_of_every_outcome(closed: dict[str, Any], error_type: str | None, error: str | None) -> None:
    span = root(make.close(**closed))
    assert (span.attributes.get("error.type"), span.error) == (error_type, error)
    assert span.attributes["vllm_lite.outcome"] == closed["outcome"]


@pytest.mark.parametrize("outcome", ["rejected", "invalid"])
def test_a_request_that_never_ran_claims_no_usage(outcome: str) -> None:
    assert not [name for name in root(make.close(outcome=outcome)).attributes if name.startswith("gen_ai.usage")]


def test_nothing_is_computed_from_an_unset_time() -> None:
    attributes = root(make.close(outcome="aborted", t_first_token=None)).attributes
    assert "gen_ai.response.time_to_first_chunk" not in attributes
    assert "vllm_lite.queue_time" not in attributes


def test_an_open_request_of_a_dead_front_end_is_closed_as_an_error() -> None:
    span = root(rec.Tokenise(1, 10, 40, 3), process=make.front())
    assert (span.end, span.attributes["vllm_lite.incomplete"], span.attributes["error.type"]) == (40, True, "frontend_dead")


def test_an_open_request_of_a_living_front_end_is_only_incomplete() -> None:
    span = root(rec.Tokenise(1, 10, 40, 3), process=make.front(alive=True))
    assert (span.attributes["vllm_lite.incomplete"], span.error) == (True, None)


def test_an_abort_sent_after_the_close_lengthens_the_root() -> None:
    span = root(make.post(), make.close(t=100), make.abort(t=130, reason="stop_string"))
    assert span.end == 130


def test_tokens_are_events_of_the_root_and_the_first_is_never_missing() -> None:
    front, core = make.front(), make.core()
    bags = [make.sort(number, 10 + 10 * number, [(1, 1, "p" if number % 2 == 0 else "s")]) for number in range(200)]
    request = make.request(
        (front, make.accept()), (core, make.schedule(0, 5, {})), *((front, bag) for bag in bags), (front, make.close(t=5000))
    )
    events = request_spans(request)[0].events
    assert events[0] == Event("gen_ai.token.generated", 14, {"index": 0, "n": 1, "merged": False, "vllm_lite.step.index": 0})
    assert events[1] == Event("gen_ai.token.generated", 24, {"index": 1, "n": 1, "merged": True})
    assert sum(int(str(event.attributes["n"])) for event in events) == 200


def test_the_mailbox_lasts_from_the_first_put_to_the_last_take() -> None:
    front = make.front()
    request = make.request(
        (front, make.accept()),
        (front, make.sort(0, 10, [(1, 1, "k")])),
        (front, make.sort(1, 20, [(1, 2, "p")])),
        (front, make.sort(2, 30, [(1, 1, "s")])),
        (front, rec.Takes([1], [60])),
        (front, make.close()),
    )
    span = one(request, "mailbox")
    assert (span.start, span.end, span.attributes) == (24, 60, {"vllm_lite.takes": 1})
    assert span.events == [
        Event("collector.put", 24, {"tokens": 2}),
        Event("collector.merge", 34, {"tokens": 1}),
        Event("collector.take", 60, {"tokens": 4, "wait_us": 0.036}),
    ]


def test_no_mailbox_without_a_put() -> None:
    front = make.front()
    request = make.request((front, make.accept()), (front, make.sort(0, 10, [(1, 1, "k")])), (front, make.close()))
    assert named(request, "mailbox") == []


def test_events_between_the_ends_are_counted() -> None:
    front = make.front()
    bags = [(front, make.sort(number, 10 * number, [(1, 1, "p")])) for number in range(10)]
    takes = (front, rec.Takes([1] * 10, list(range(10))))
    request = make.request((front, make.accept()), *bags, takes, (front, make.close()))
    request.cut(2)
    root = request_spans(request)[0]
    assert ([event.attributes["index"] for event in root.events], root.dropped_events) == ([0, 1, 8, 9], 6)
    assert (len(one(request, "mailbox").events), one(request, "mailbox").dropped_events) == (8, 12)


def sampled_twice() -> RequestJourney:
    front, core = make.front(), make.core()
    parents = [f"e{1:014x}{sample}" for sample in (0, 1)]
    return make.request(
        (front, make.accept()),
        (front, make.post(t0=10, t1=12)),
        (front, make.post(t0=13, t1=15, sample=1)),
        (core, make.receive(req=1, internal_id="1_0", parent_span_id=parents[0])),
        (core, make.receive(req=2, internal_id="1_1", parent_span_id=parents[1])),
        (core, make.schedule(0, 50, {1: 1, 2: 1})),
        (core, make.update(0, 60, 70, [(1, "stop")])),
        (core, make.send(0, 72)),
        (front, make.sort(0, 80, [(1, 1, "k")])),
        (core, make.schedule(1, 90, {2: 1})),
        (core, make.update(1, 95, 100, [(2, "length")])),
        (core, make.send(1, 102)),
        (front, make.sort(1, 110, [(1, 1, "p")])),
        (front, make.close(t=114, finish_reasons=["stop", "length"])),
    )


def test_each_of_n_answers_is_a_sample_of_the_one_request() -> None:
    request = sampled_twice()
    spans = {span.span_id: span for span in request_spans(request)}
    samples = [span for span in spans.values() if span.name.startswith("sample ")]
    assert [(span.name, span.start, span.end) for span in samples] == [("sample 0", 10, 85), ("sample 1", 13, 114)]
    assert [span.attributes["gen_ai.response.finish_reasons"] for span in samples] == [["stop"], ["length"]]
    sends = [span for span in spans.values() if span.kind is Kind.PRODUCER]
    assert [span.parent_span_id for span in sends] == [span.span_id for span in samples]
    assert {span.parent_span_id for span in samples} == {request.accept.span_id}
    assert spans[request.accept.span_id].attributes["vllm_lite.internal_id"] == ["1_0", "1_1"]
    assert len([span for span in spans.values() if span.name == "process engine_core.inputs"]) == 2


def test_a_sample_that_never_came_back_lasts_to_the_end() -> None:
    front = make.front()
    posts = [(front, make.post(t0=10, t1=12)), (front, make.post(t0=13, t1=15, sample=1))]
    request = make.request((front, make.accept()), *posts, (front, make.close(t=99, outcome="engine_dead")))
    assert [span.end for span in request_spans(request) if span.name.startswith("sample")] == [99, 99]


def test_an_abort_and_its_receipt(canned: Run) -> None:
    bob = canned.requests[1]
    sent, received = one(bob, "abort engine_core"), one(bob, "process engine_core.abort")
    assert sent.span_id == bob.aborts[0].span_id
    assert sent.parent_span_id == bob.accept.span_id
    assert (received.parent_span_id, received.kind, received.process.role) == (sent.span_id, Kind.CONSUMER, "engine-core")
    assert received.attributes["vllm_lite.late_outputs"] == 1
    assert received.attributes["vllm_lite.status"] == ["running"]
    assert sent.attributes["vllm_lite.abort.reason"] == received.attributes["vllm_lite.abort.reason"] == "stop_string"
    leave = bob.stays[0].leave
    assert leave
    assert received.end == bob.stays[0].process.wall(leave.t)


def test_aborting_two_samples_is_one_message_and_one_receipt() -> None:
    front, core = make.front(), make.core()
    ids = ["1_0", "1_1"]
    request = make.request(
        (front, make.accept()),
        (front, make.post()),
        (front, make.post(sample=1)),
        (front, make.abort(internal_ids=ids)),
        (core, make.receive_abort(ids=ids)),
        (front, make.close(outcome="aborted")),
    )
    receipt = one(request, "process engine_core.abort")
    assert receipt.attributes["messaging.batch.message_count"] == 2
    assert receipt.parent_span_id == request.aborts[0].span_id
    assert (receipt.start, receipt.end) == (60, 60)


def test_the_ids_are_always_the_same(canned: Run) -> None:
    first = [(span.span_id, span.name) for request in canned.requests for span in request_spans(request)]
    assert first == [(span.span_id, span.name) for request in canned.requests for span in request_spans(request)]
    assert len({span_id for span_id, _ in first}) == len(first)
