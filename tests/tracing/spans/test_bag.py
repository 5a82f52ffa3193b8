from __future__ import annotations

from tests.tracing import make
from vllm_lite.tracing.journey import Bag, Run
from vllm_lite.tracing.spans import Event, Link, bag_spans


def bag(**fields: object) -> Bag:
    front, core = make.front(), make.core()
    assembler = make.assemble(
        (front, make.accept()),
        (front, make.post()),
        (core, make.schedule(0, 10, {})),
        (core, make.send(0, 30)),
        (front, make.sort(0, 40, [(1, 1, "p"), (0, 1, "s"), (1, 2, "k")], **fields)),
    )
    return assembler.bags[0]


def test_slices_and_the_gaps_between_them() -> None:
    spans = bag_spans(bag(slices=[(42, 44, 2), (50, 52, 1)], t_done=60))
    assert [(span.name, span.start, span.end) for span in spans] == [
        ("process engine_core.outputs", 40, 60),
        ("output_processor.slice", 42, 44),
        ("yield_to_loop", 44, 50),
        ("output_processor.slice", 50, 52),
    ]
    assert spans[1].attributes == {"vllm_lite.slice.index": 0, "vllm_lite.slice.size": 2}
    assert spans[1].events == [
        Event("collector.put", 44, {"tokens": 1, "vllm_lite.request.id": "r1"}),
        Event("collector.merge", 44, {"tokens": 1}),
    ]
    assert spans[3].events == [Event("collector.keep_back", 52, {"tokens": 2, "vllm_lite.request.id": "r1"})]


def test_what_a_bag_says() -> None:
    span = bag_spans(bag(late=[("gone", 4)]))[0]
    assert span.attributes == {
        "messaging.system": "zeromq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "engine_core.outputs",
        "messaging.batch.message_count": 4,
        "messaging.message.body.size": 50,
        "vllm_lite.bag.index": 0,
        "vllm_lite.engine_index": 0,
        "vllm_lite.decode_us": 0.001,
        "vllm_lite.wire_us": 0.008,
        "vllm_lite.num_slices": 1,
        "vllm_lite.num_tokens": 4,
        "vllm_lite.num_put": 1,
        "vllm_lite.num_stapled": 1,
        "vllm_lite.num_kept_back": 1,
        "vllm_lite.num_late": 1,
    }
    assert span.events == [Event("letter.late", 45, {"vllm_lite.internal_id": "gone", "tokens": 4})]


def test_stop_strings_are_told_in_one_message_linked_to_each_abort(canned: Run) -> None:
    [span] = [span for span in bag_spans(canned.bags[3]) if span.name == "send engine_core.abort"]
    bob = canned.requests[1]
    assert span.links == [Link(bob.accept.trace_id, bob.aborts[0].span_id, {"vllm_lite.request.id": "bob"})]
    assert span.attributes["messaging.batch.message_count"] == 1


def test_a_bag_received_before_its_sender_noted_the_end_of_sending() -> None:
    assert bag_spans(bag(t_received=31))[0].attributes["vllm_lite.wire_us"] == 0.0


def test_a_bag_of_an_untraced_step_has_no_spans() -> None:
    assert bag_spans(bag(trace=None)) == []


def test_a_bag_whose_senders_record_was_lost_hangs_on_the_step() -> None:
    front, core = make.front(), make.core()
    assembler = make.assemble((core, make.schedule(0, 10, {})), (front, make.sort(0, 40)))
    span = bag_spans(assembler.bags[0])[0]
    assert span.parent_span_id == f"5{0:015x}"
    assert span.attributes["vllm_lite.incomplete"] is True


def test_a_bag_whose_step_was_lost_stands_alone() -> None:
    span = bag_spans(make.assemble((make.front(), make.sort(0, 40))).bags[0])[0]
    assert (span.parent_span_id, span.trace_id) == (None, make.step_trace(0))
    assert span.attributes["vllm_lite.incomplete"] is True
