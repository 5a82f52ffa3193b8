from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from tests.tracing import make
from vllm_lite.tracing.check import Finding, judge
from vllm_lite.tracing.check.counts import Held
from vllm_lite.tracing.check.trees import Trees
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.spans import Kind, Link, Span, run_spans

TRACE, OTHER = "a" * 32, "c" * 32


def span(number: int, parent: int | None = None, start: int = 0, end: int = 100, **fields: object) -> Span:
    parent_id = None if parent is None else f"{parent:016x}"
    made = Span(make.core(), TRACE, f"{number:016x}", parent_id, f"span {number}", Kind.INTERNAL, start, end)
    return replace(made, **fields)  # type: ignore[arg-type]


def check(rule: Callable[[Trees], Iterator[Held]], *spans: Span, callers: frozenset[str] = frozenset()) -> Finding:
    return judge("rule", rule(Trees(spans, set(callers))))


def test_an_orphan() -> None:
    assert check(Trees.no_orphans, span(1), span(2, 1)).ok
    finding = check(Trees.no_orphans, span(1), span(2, 9))
    assert finding.failures == [f"span 2 ({2:016x}) has no parent {9:016x}"]
    assert check(Trees.no_orphans, span(2, 9), callers=frozenset({f"{9:016x}"})).ok


def test_a_parent_in_another_trace_is_none() -> None:
    assert not check(Trees.no_orphans, span(1, trace_id=OTHER), span(2, 1)).ok


def test_parents_in_a_circle_have_a_top() -> None:
    around = [span(1, 2), span(2, 1), span(3, 3)]
    assert [Trees(around, set()).top(one).name for one in around] == ["span 1", "span 2", "span 3"]


def test_an_id_twice() -> None:
    assert check(Trees.unique_ids, span(1), span(2)).ok
    assert check(Trees.unique_ids, span(1), span(1, trace_id=OTHER)).failures == [f"2 spans have the id {1:016x}"]


def test_roots() -> None:
    caller = frozenset({f"{9:016x}"})
    assert check(Trees.one_root, span(1), span(2, 1)).ok
    assert check(Trees.one_root, span(1), span(2)).failures == [f"trace {TRACE} has 2 roots"]
    assert check(Trees.one_root, span(2, 1)).failures == [f"trace {TRACE} has 0 roots"]
    assert check(Trees.one_root, span(1, 9), span(2, 9), span(3, 2), callers=caller).ok


def test_what_lost_its_sender_is_no_second_root() -> None:
    lost = span(2, remote_parent=True, attributes={"vllm_lite.incomplete": True})
    assert check(Trees.one_root, span(1), lost).ok
    assert check(Trees.one_root, lost).ok


@pytest.mark.parametrize(("start", "end", "outside"), [(0, 100, 0), (-1, 100, 1), (0, 101, 1), (5, 95, 0)])
def test_a_child_lies_within_its_parent_to_the_nanosecond(start: int, end: int, outside: int) -> None:
    finding = check(Trees.nesting, span(1), span(2, 1, start, end))
    assert finding.checked == 3
    expected = [f"span 2 ({2:016x}) is {outside} ns outside span 1 ({1:016x})"] if outside else []
    assert finding.failures == expected


def test_what_a_message_started_may_end_later_but_not_begin_earlier() -> None:
    assert check(Trees.nesting, span(1), span(2, 1, 50, 900, kind=Kind.CONSUMER)).ok
    assert not check(Trees.nesting, span(1), span(2, 1, -1, 900, kind=Kind.CONSUMER)).ok


def test_a_negative_duration() -> None:
    assert check(Trees.nesting, span(1, start=10, end=7)).failures == [f"span 1 ({1:016x}) ends 3 ns before it starts"]


def test_a_link_to_nowhere() -> None:
    assert check(Trees.links, span(1, links=[Link(TRACE, f"{2:016x}", {})]), span(2)).ok
    assert not check(Trees.links, span(1, links=[Link(TRACE, f"{3:016x}", {})])).ok


def linked(own: list[int], steps: list[int], elided: int = 0) -> Finding:
    """A request (span 1) with request.step spans for the steps `own`, and the steps `steps` that link to it."""
    root = span(1)
    stay = span(2, 1, attributes={"vllm_lite.steps_elided": elided})
    parts = [span(100 + n, 2, name="request.step", links=[Link(OTHER, f"{200 + n:016x}", {})]) for n in own]
    there = [span(200 + n, trace_id=OTHER, name="engine_core.step", links=[Link(TRACE, root.span_id, {})]) for n in steps]
    return check(Trees.links_both_ways, root, stay, *parts, *there)


def test_links_answer_each_other() -> None:
    assert linked([1, 2, 3], [1, 2, 3]).ok
    assert not linked([1, 2], [1, 2, 3]).ok
    assert not linked([1, 2, 3], [1, 2]).ok
    assert linked([1, 3], [1, 2, 3], elided=1).ok
    assert not linked([1, 4], [1, 2, 3, 4], elided=1).ok
    assert linked([], [], elided=0).checked == 1


def every_rule(spans: list[Span]) -> list[Finding]:
    rules = (Trees.no_orphans, Trees.unique_ids, Trees.one_root, Trees.nesting, Trees.links, Trees.links_both_ways)
    return [check(rule, *spans) for rule in rules]


def test_a_real_run_keeps_every_rule(canned: Run, dead: Run) -> None:
    for run in (canned, dead):
        findings = every_rule(list(run_spans(run)))
        assert [finding.failures for finding in findings] == [[]] * 6
        assert all(finding.checked for finding in findings)


@pytest.mark.parametrize("index", range(0, 150, 7))
def test_a_real_run_without_one_of_its_spans_does_not(canned: Run, index: int) -> None:
    spans = list(run_spans(canned))
    del spans[index]
    assert any(not finding.ok for finding in every_rule(spans)) or not _needed(canned, index)


def _needed(run: Run, index: int) -> bool:
    """Whether another span hangs on this one or links to it; a leaf is missed by nobody."""
    spans = list(run_spans(run))
    gone = spans[index].span_id
    return any(span.parent_span_id == gone or any(link.span_id == gone for link in span.links) for span in spans)
