from __future__ import annotations

from tests.tracing import make
from vllm_lite.tracing.spans.model import Kind, Span, derived_id, derived_trace_id, known, messaging


def test_derived_ids_never_change() -> None:
    """A later export must give the ids that the exporter gave; these were computed once."""
    assert derived_id("b" * 16, "queued", 0) == "e460ceaf9605c962"
    assert derived_trace_id("phase", "host") == "57abc7629d03d84fbc35fccc01f3a8fd"
    assert derived_id("a", 1) != derived_id("a", 2)


def test_known_drops_only_none() -> None:
    assert known({"a": None, "b": 0, "c": False, "d": "", "e": 0.0}) == {"b": 0, "c": False, "d": "", "e": 0.0}


def test_a_failed_span_names_its_error() -> None:
    span = Span(make.core(), "a" * 32, "b" * 16, None, "x", Kind.INTERNAL, 0, 1)
    assert span.error is None
    span.fail("engine_dead", "it died")
    assert (span.error, span.attributes) == ("it died", {"error.type": "engine_dead"})


def test_messaging() -> None:
    assert messaging("send", "send", "engine_core.inputs") == {
        "messaging.system": "zeromq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "engine_core.inputs",
    }
