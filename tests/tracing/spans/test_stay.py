from __future__ import annotations

from tests.tracing import make
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import Run, Stay
from vllm_lite.tracing.process import Process
from vllm_lite.tracing.spans import Event, Link, Span, stay_spans
from vllm_lite.tracing.spans.stay import STEP_ENDS, queue_time_ns


def stay(*records: rec.Record, core: Process | None = None, level: int = 3) -> Stay:
    """One request's stay: received from 30 to 40, and then these records of its engine core."""
    front, core = make.front(), core or make.core()
    begun = [(front, make.accept(level=level)), (front, make.post()), (core, make.receive())]
    return make.request(*begun, *((core, record) for record in records)).stays[0]


def times(spans: list[Span]) -> list[tuple[str, int, int]]:
    return [(span.name, span.start, span.end) for span in spans if span.name != "request.step"]


def test_queued_prefilled_decoded() -> None:
    spans = stay_spans(
        stay(
            make.schedule(0, 50, {1: 8}, prefills=[1], new=[(1, 4)]),
            make.update(0, 58, 60),
            make.schedule(1, 61, {1: 3}, prefills=[1]),
            make.update(1, 68, 70),
            make.schedule(2, 71, {1: 1}),
            make.update(2, 78, 80),
            make.schedule(3, 81, {1: 1}),
            make.update(3, 88, 90, [(1, "length")]),
        )
    )
    assert times(spans) == [
        ("process engine_core.inputs", 30, 90),
        ("request.queued", 40, 50),
        ("request.prefill", 50, 70),
        ("request.decode", 70, 90),
    ]
    prefill, decode = spans[2], spans[3]
    assert prefill.attributes == {
        "vllm_lite.chunks": 2,
        "vllm_lite.num_computed_tokens": 11,
        "vllm_lite.num_cached_tokens": 4,
    }
    assert prefill.links == [
        Link(make.step_trace(step), f"5{step:015x}", {"vllm_lite.step.index": step, "vllm_lite.num_tokens": tokens})
        for step, tokens in ((0, 8), (1, 3))
    ]
    assert decode.attributes == {"vllm_lite.num_steps": 2}
    assert [link.attributes["vllm_lite.step.index"] for link in decode.links] == [2, 3]
    assert spans[0].attributes["gen_ai.response.finish_reasons"] == ["length"]


def test_a_stay_without_a_single_decode() -> None:
    spans = stay_spans(stay(make.schedule(0, 50, {1: 8}, prefills=[1]), make.update(0, 58, 60, [(1, "length")])))
    assert times(spans)[1:] == [("request.queued", 40, 50), ("request.prefill", 50, 60)]


def test_one_decode_step_is_linked_once() -> None:
    spans = stay_spans(stay(make.schedule(0, 50, {1: 1}), make.update(0, 58, 60, [(1, "length")])))
    assert times(spans)[1:] == [("request.queued", 40, 50), ("request.decode", 50, 60)]
    assert len(spans[2].links) == 1


def test_left_while_waiting() -> None:
    left = stay(rec.Leave(1, 90, "client_disconnect", "waiting"))
    spans = stay_spans(left)
    assert times(spans) == [("process engine_core.inputs", 30, 90), ("request.queued", 40, 90)]
    assert spans[0].attributes["vllm_lite.leave.status"] == "waiting"
    assert spans[0].error is None
    assert queue_time_ns(left) == 0


def test_a_step_that_ends_after_the_leave_is_still_within() -> None:
    spans = stay_spans(
        stay(make.schedule(0, 50, {1: 8}, prefills=[1]), rec.Leave(1, 55, "api", "running"), make.update(0, 58, 60))
    )
    assert times(spans) == [
        ("process engine_core.inputs", 30, 60),
        ("request.queued", 40, 50),
        ("request.prefill", 50, 60),
    ]


def test_steps_that_overlap_start_the_decode_early() -> None:
    """Async scheduling: the next step is scheduled before the prefill's result is there."""
    spans = stay_spans(
        stay(
            make.schedule(0, 50, {1: 8}, prefills=[1]),
            make.schedule(1, 55, {1: 1}),
            make.update(0, 58, 60),
            make.update(1, 68, 70, [(1, "stop")]),
        )
    )
    assert times(spans)[2:] == [("request.prefill", 50, 60), ("request.decode", 55, 70)]


def test_scheduled_while_the_input_thread_was_still_writing() -> None:
    spans = stay_spans(stay(make.schedule(0, 38, {1: 8}, prefills=[1]), make.update(0, 58, 60, [(1, "stop")])))
    assert times(spans)[1:] == [("request.queued", 38, 38), ("request.prefill", 38, 60)]


def preempted() -> Stay:
    return stay(
        make.schedule(0, 50, {1: 8}, prefills=[1]),
        make.update(0, 58, 60),
        make.schedule(1, 70, {}, preempted=[1]),
        make.schedule(2, 90, {1: 9}, prefills=[1], new=[(1, 4)]),
        make.update(2, 98, 100),
        make.schedule(3, 101, {1: 1}),
        make.update(3, 108, 110, [(1, "stop")]),
    )


def test_a_preemption_queues_it_again() -> None:
    spans = stay_spans(preempted())
    assert times(spans) == [
        ("process engine_core.inputs", 30, 110),
        ("request.queued", 40, 50),
        ("request.prefill", 50, 70),
        ("request.queued", 70, 90),
        ("request.prefill", 90, 100),
        ("request.decode", 100, 110),
    ]
    assert spans[0].events == [Event("request.preempted", 70, {"vllm_lite.preemption": 1})]
    assert spans[0].attributes["vllm_lite.preemptions"] == 1
    assert queue_time_ns(preempted()) == 10 + 20
    assert len({span.span_id for span in spans}) == len(spans)


def test_steps_of_level_3() -> None:
    spans = stay_spans(preempted())
    steps = [span for span in spans if span.name == "request.step"]
    parents = {span.span_id: (span.name, span.start) for span in spans}
    assert [(parents[span.parent_span_id or ""], span.start, span.end) for span in steps] == [
        (("request.prefill", 50), 50, 60),
        (("request.prefill", 90), 90, 100),
        (("request.decode", 100), 101, 110),
    ]
    assert steps[1].attributes == {"vllm_lite.step.index": 2, "vllm_lite.num_tokens": 9, "vllm_lite.batch_size": 1}
    assert [(link.trace_id, link.span_id) for link in steps[1].links] == [(make.step_trace(2), f"5{2:015x}")]
    assert spans[0].attributes["vllm_lite.steps_elided"] == 0


def test_no_steps_below_level_3() -> None:
    spans = stay_spans(stay(make.schedule(0, 50, {1: 8}), make.update(0, 58, 60, [(1, "stop")]), level=2))
    assert "request.step" not in {span.name for span in spans}


def test_of_a_long_answer_the_first_and_the_last_steps() -> None:
    num_steps = 2 * STEP_ENDS + 7
    records: list[rec.Record] = []
    for step in range(num_steps):
        records += [make.schedule(step, 50 + 10 * step, {1: 1}), make.update(step, 55 + 10 * step, 58 + 10 * step)]
    spans = stay_spans(stay(*records, rec.Leave(1, 50 + 10 * num_steps, "api", "running")))
    made = [int(str(span.attributes["vllm_lite.step.index"])) for span in spans if span.name == "request.step"]
    assert made == [*range(STEP_ENDS), *range(num_steps - STEP_ENDS, num_steps)]
    assert spans[0].attributes["vllm_lite.steps_elided"] == 7


def test_a_dead_engine_core() -> None:
    core = make.core()
    spans = stay_spans(stay(make.schedule(0, 50, {1: 8}, prefills=[1]), make.execute(0, 55, 99), core=core))
    assert times(spans) == [("process engine_core.inputs", 30, 99), ("request.queued", 40, 50), ("request.prefill", 50, 99)]
    assert spans[0].attributes["error.type"] == "engine_dead"
    assert spans[0].attributes["vllm_lite.incomplete"] is True
    assert spans[0].error


def test_a_stay_that_is_not_over_is_incomplete_and_no_error() -> None:
    span = stay_spans(stay(core=make.core(alive=True)))[0]
    assert span.attributes["vllm_lite.incomplete"] is True
    assert span.error is None


def test_a_request_that_failed_in_the_engine() -> None:
    span = stay_spans(stay(make.schedule(0, 50, {1: 8}), make.update(0, 58, 60, [(1, "error")])))[0]
    assert span.attributes["error.type"] == "engine_generate_error"


def test_a_stay_whose_sender_left_no_record_has_no_parent() -> None:
    [only] = make.assemble((make.core(), make.receive())).strays
    span = stay_spans(only)[0]
    assert (span.parent_span_id, span.attributes["vllm_lite.incomplete"]) == (None, True)


def test_a_stay_whose_beginning_is_lost_gives_nothing() -> None:
    [only] = make.assemble((make.core(), make.schedule(0, 50, {1: 1}))).strays
    assert stay_spans(only) == []


def test_the_canned_preemption(canned: Run) -> None:
    spans = stay_spans(canned.requests[2].stays[0])
    assert [span.name for span in spans if span.name != "request.step"] == [
        "process engine_core.inputs",
        *["request.queued", "request.prefill", "request.decode"] * 2,
    ]
