from __future__ import annotations

import ast
import importlib.util
from collections import Counter
from pathlib import Path

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


def test_every_function_that_a_span_names_exists(canned: Run) -> None:
    names = {
        str(span.attributes["code.function.name"]) for span in run_spans(canned) if "code.function.name" in span.attributes
    }
    assert len(names) == 5
    for name in names:
        module, class_name, function = name.rsplit(".", 2)
        spec = importlib.util.find_spec(module)
        assert spec is not None, name
        assert spec.origin is not None, name
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name]
        functions = {node.name for found in classes for node in found.body if isinstance(node, ast.FunctionDef)}
        assert function in functions, name
