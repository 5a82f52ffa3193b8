from __future__ import annotations

from collections import Counter

from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.spans import run_spans


def test_all_traces_of_a_run(canned: Run) -> None:
    spans = list(run_spans(canned))
    roots = Counter(span.name for span in spans if span.parent_span_id is None)
    assert roots == {"engine.start": 1, "text_completion canned-model": 3, "engine_core.step": 9}
    assert len({span.span_id for span in spans}) == len(spans)


def test_of_a_dead_engine_all_requests_are_closed(dead: Run) -> None:
    spans = list(run_spans(dead))
    requests = {span.attributes["vllm_lite.request.id"]: span for span in spans if span.name.startswith("text_completion")}
    assert {name: span.attributes.get("error.type") for name, span in requests.items()} == {
        "ann": "engine_dead",
        "bob": None,
        "cleo": "engine_dead",
    }
    stays = [span for span in spans if span.name == "process engine_core.inputs"]
    assert [span.attributes.get("error.type") for span in stays] == ["engine_dead", None, "engine_dead"]
    assert [span.attributes.get("vllm_lite.incomplete") for span in stays] == [True, None, True]
    assert Counter(span.name for span in spans)["engine_core.death"] == 1
