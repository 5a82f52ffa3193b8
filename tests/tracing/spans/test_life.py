from __future__ import annotations

from tests.tracing import make
from vllm_lite.tracing.records import EngineDead, Phase
from vllm_lite.tracing.spans import life_spans


def test_start_up_is_one_trace_nested_by_time_within_each_process() -> None:
    front, core = make.front(), make.core()
    phases = [
        (core, Phase("build", 20, 80)),
        (core, Phase("load", 30, 50)),
        (core, Phase("warm_up", 50, 70)),
        (core, Phase("ready", 80, 85)),
        (front, Phase("handshake", 10, 90)),
    ]
    spans = list(life_spans(phases, [], None))
    names = {span.span_id: span.name for span in spans}
    assert [(names.get(span.parent_span_id or ""), span.name, span.start, span.end) for span in spans] == [
        (None, "engine.start", 10, 90),
        ("engine.start", "handshake", 10, 90),
        ("engine.start", "build", 20, 80),
        ("build", "load", 30, 50),
        ("build", "warm_up", 50, 70),
        ("engine.start", "ready", 80, 85),
    ]
    assert len({span.trace_id for span in spans}) == 1
    assert spans[0].process is front


def test_nothing_to_tell() -> None:
    assert list(life_spans([], [], None)) == []


def test_phases_after_the_first_request_are_traces_of_their_own() -> None:
    core = make.core()
    phases = [(core, Phase("load", 10, 20)), (core, Phase("wake_up", 60, 70)), (core, Phase("wake_up", 80, 90))]
    spans = list(life_spans(phases, [], first_request=50))
    assert [(span.name, span.parent_span_id is None) for span in spans] == [
        ("engine.start", True),
        ("load", False),
        ("wake_up", True),
        ("wake_up", True),
    ]
    assert len({span.trace_id for span in spans}) == 3
    [alone] = life_spans(phases[1:2], [], first_request=0)
    assert spans[2].trace_id == alone.trace_id


def test_a_death() -> None:
    [span] = life_spans([], [(make.front(), EngineDead(1, 500))], None)
    assert (span.name, span.start, span.end, span.error) == ("engine_core.death", 500, 500, "the engine core died")
    assert span.attributes == {"vllm_lite.engine_index": 1, "error.type": "engine_dead"}
    [same] = life_spans([], [(make.front(), EngineDead(1, 500))], None)
    assert same.span_id == span.span_id
