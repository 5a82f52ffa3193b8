from __future__ import annotations

from tests.tracing import make
from vllm_lite.tracing.journey.model import UtilityCall
from vllm_lite.tracing.records import EngineDead, Phase
from vllm_lite.tracing.spans import Kind, Link, life_spans
from vllm_lite.tracing.spans.life import call_spans


def test_a_start_up_is_one_trace_nested_by_time_and_by_who_started_whom() -> None:
    front, core = make.front(), make.core(parent_pid=1)
    second, worker = make.core(parent_pid=1), make.worker(parent_pid=2)
    second.pid = 4
    phases = [
        (worker, Phase("load", 30, 50)),
        (core, Phase("build", 20, 80)),
        (second, Phase("build", 25, 60)),  # around the load too, but not who started that worker
        (worker, Phase("warm_up", 80, 84)),
        (core, Phase("engine_core.start", 15, 85)),
        (front, Phase("launch", 10, 90)),
        (front, Phase("engine.start", 5, 90)),
    ]
    spans = list(life_spans(phases, []))
    names = {span.span_id: span.name for span in spans}
    assert [(names.get(span.parent_span_id or ""), span.name, span.start, span.end) for span in spans] == [
        (None, "engine.start", 5, 90),
        ("engine.start", "launch", 10, 90),
        ("launch", "engine_core.start", 15, 85),
        ("engine_core.start", "build", 20, 80),
        ("launch", "build", 25, 60),
        ("build", "load", 30, 50),
        ("engine_core.start", "warm_up", 80, 84),
    ]
    assert next(span for span in spans if span.name == "load").parent_span_id == spans[3].span_id
    assert len({span.trace_id for span in spans}) == 1


def test_nothing_to_tell() -> None:
    assert list(life_spans([], [])) == []


def test_what_nothing_holds_is_a_trace_of_its_own() -> None:
    core, other = make.core(), make.front()
    other.pid = 9
    phases = [(core, Phase("load", 10, 20)), (core, Phase("wake_up", 60, 70)), (other, Phase("shutdown", 5, 90))]
    spans = list(life_spans(phases, []))
    assert {(span.name, span.parent_span_id) for span in spans} == {("load", None), ("wake_up", None), ("shutdown", None)}
    assert len({span.trace_id for span in spans}) == 3
    [alone] = life_spans(phases[1:2], [])
    assert alone.trace_id in {span.trace_id for span in spans}


def test_gap_19_what_ended_a_phase_is_its_error() -> None:
    [span] = life_spans([(make.core(), Phase("shutdown", 10, 20, ("RuntimeError", "worker 1 ended")))], [])
    assert (span.attributes["error.type"], span.error) == ("RuntimeError", "worker 1 ended")


def test_a_death() -> None:
    [span] = life_spans([], [(make.front(), EngineDead(1, 500))])
    assert (span.name, span.start, span.end, span.error) == ("engine_core.death", 500, 500, "the engine core died")
    assert span.attributes == {"vllm_lite.engine_index": 1, "error.type": "engine_dead"}
    [same] = life_spans([], [(make.front(), EngineDead(1, 500, "it was killed"))])
    assert same.span_id == span.span_id
    assert same.error == "it was killed"


def test_gap_15_both_halves_of_a_call_are_one_trace_and_name_each_other() -> None:
    error = ("TimeoutError", "worker 1 did not answer sleep_for within 0.1 s")
    call = UtilityCall((make.front(), make.call(10, 90, error=("RuntimeError", "it failed"))), None)
    call.serve = make.core(), make.serve(20, 30, 80, error=error)
    caller, served = call_spans(call)
    assert (caller.name, caller.kind, caller.start, caller.end) == ("engine_core/sleep", Kind.CLIENT, 10, 90)
    assert (served.name, served.kind, served.start, served.end) == ("engine_core/sleep", Kind.SERVER, 20, 80)
    assert (served.trace_id, served.parent_span_id) == (caller.trace_id, caller.span_id)
    assert caller.links == [Link(served.trace_id, served.span_id, {})]
    assert (served.attributes["error.type"], served.error) == error
    assert caller.error == "it failed"
    rpc = {"rpc.system": "zeromq", "rpc.service": "engine_core", "rpc.method": "sleep", "vllm_lite.call_id": 7}
    assert rpc.items() <= served.attributes.items()
    assert served.attributes["vllm_lite.queued_us"] == 0.01


def test_half_a_call_stands_alone() -> None:
    [caller] = call_spans(UtilityCall((make.front(), make.call(10, 90))))
    assert (caller.kind, caller.links, caller.error) == (Kind.CLIENT, [], None)
    [served] = call_spans(UtilityCall(None, (make.core(), make.serve(20, 30, 80))))
    assert (served.kind, served.parent_span_id, served.attributes["vllm_lite.incomplete"]) == (Kind.SERVER, None, True)
