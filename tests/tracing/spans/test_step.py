from __future__ import annotations

from tests.tracing import make
from vllm_lite.tracing.journey import Bag, Run
from vllm_lite.tracing.spans import Event, Kind, Link, bag_spans, step_spans


def test_the_tree_of_a_step(canned: Run) -> None:
    spans = step_spans(canned.steps[3])
    names = {span.span_id: span.name for span in spans}
    assert [(names.get(span.parent_span_id or ""), span.name, span.kind.name, span.process.role) for span in spans] == [
        (None, "engine_core.step", "INTERNAL", "engine-core"),
        ("engine_core.step", "scheduler.schedule", "INTERNAL", "engine-core"),
        ("engine_core.step", "executor.execute_model", "CLIENT", "engine-core"),
        ("executor.execute_model", "worker.execute_model", "SERVER", "worker"),
        ("worker.execute_model", "worker.prepare", "INTERNAL", "worker"),
        ("worker.execute_model", "worker.forward", "INTERNAL", "worker"),
        ("worker.execute_model", "worker.sample", "INTERNAL", "worker"),
        ("engine_core.step", "scheduler.update_from_output", "INTERNAL", "engine-core"),
        ("engine_core.step", "send engine_core.outputs", "PRODUCER", "engine-core"),
        ("send engine_core.outputs", "process engine_core.outputs", "CONSUMER", "frontend"),
        ("process engine_core.outputs", "output_processor.slice", "INTERNAL", "frontend"),
        ("process engine_core.outputs", "send engine_core.abort", "PRODUCER", "frontend"),
    ]


def test_a_step_links_to_each_request_in_it(canned: Run) -> None:
    root = step_spans(canned.steps[1])[0]
    requests = {request.accept.external_id: request.accept for request in canned.requests}
    assert root.links == [
        Link(requests[name].trace_id, requests[name].span_id, {"vllm_lite.request.id": name, "vllm_lite.num_tokens": tokens})
        for name, tokens in (("ann", 1), ("bob", 1), ("cleo", 17))
    ]
    assert root.attributes == {
        "vllm_lite.step.index": 1,
        "vllm_lite.num_requests": 3,
        "vllm_lite.num_prefill": 1,
        "vllm_lite.num_tokens": 19,
        "vllm_lite.num_running": 3,
        "vllm_lite.num_waiting": 0,
        "vllm_lite.kv.usage": 0.25,
        "vllm_lite.preempted": 0,
        "vllm_lite.blocks_evicted": 0,
        "vllm_lite.blocks_refused": 0,
    }


def test_a_step_lasts_until_its_last_bag_was_sent() -> None:
    core = make.core()
    step = make.step(
        (core, make.schedule(0, 10, {})),
        (core, make.update(0, 20, 25)),
        (core, make.send(0, 30)),
        (core, make.send(0, 40, client=1)),
    )
    root, *rest = step_spans(step)
    assert (root.start, root.end) == (10, 42)
    assert [(span.start, span.end) for span in rest if span.kind is Kind.PRODUCER] == [(30, 32), (40, 42)]


def test_two_samples_of_one_request_are_one_link() -> None:
    front, core = make.front(), make.core()
    step = make.step(
        (front, make.accept()),
        (front, make.post()),
        (front, make.post(sample=1)),
        (core, make.receive(req=1, internal_id="1_0")),
        (core, make.receive(req=2, internal_id="1_1")),
        (core, make.schedule(0, 50, {1: 5, 2: 6})),
    )
    assert [link.attributes["vllm_lite.num_tokens"] for link in step_spans(step)[0].links] == [11]


def test_a_link_that_was_made_before_the_front_ends_records_came_is_made_again() -> None:
    front, core = make.front(), make.core()
    assembler = make.assemble(
        (core, make.receive(req=1, internal_id="1_0")),
        (core, make.receive(req=2, internal_id="1_1")),
        (core, make.schedule(0, 50, {1: 5, 2: 5})),
        (core, make.schedule(1, 60, {1: 5, 2: 5})),
    )
    first, second = assembler.steps.values()
    assert [link.span_id for link in step_spans(first)[0].links] == [f"d{1:015x}", f"d{2:015x}"]
    assembler.feed(front, make.accept())
    assembler.feed(front, make.post())
    assert [link.span_id for link in step_spans(second)[0].links] == [f"{1:016x}", f"d{2:015x}"]
    assembler.feed(front, make.post(sample=1))
    links = step_spans(second)[0].links
    assert links == [Link(make.TRACE, f"{1:016x}", {"vllm_lite.request.id": "r1", "vllm_lite.num_tokens": 10})]


def test_without_the_front_ends_spool_a_step_links_to_the_stay() -> None:
    core = make.core()
    step = make.step((core, make.receive()), (core, make.schedule(0, 50, {1: 5, 2: 5})))
    links = step_spans(step)[0].links
    assert links == [Link(make.TRACE, f"d{1:015x}", {"vllm_lite.request.id": "1_0", "vllm_lite.num_tokens": 5})]


def test_device_time_is_in_seconds_and_absent_where_unknown() -> None:
    core, worker = make.core(), make.worker()
    work = make.work(0, 16, 24)
    begun = [(core, make.schedule(0, 10, {})), (core, make.execute(0, 15, 25))]
    [without] = [span for span in step_spans(make.step(*begun, (worker, work))) if span.name == "worker.execute_model"]
    assert "vllm_lite.device_time" not in without.attributes
    work.device_ns = 2_500_000
    [measured] = [span for span in step_spans(make.step(*begun, (worker, work))) if span.name == "worker.execute_model"]
    assert measured.attributes["vllm_lite.device_time"] == 0.0025


def test_a_step_during_which_the_engine_died() -> None:
    core = make.core()
    root = step_spans(make.step((core, make.schedule(0, 10, {})), (core, make.execute(0, 15, 25))))[0]
    assert (root.attributes["error.type"], root.attributes["vllm_lite.incomplete"], root.end) == ("engine_dead", True, 25)
    alive = make.core(alive=True)
    assert step_spans(make.step((alive, make.schedule(0, 10, {}))))[0].error is None


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
