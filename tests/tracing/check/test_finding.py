from __future__ import annotations

from vllm_lite.tracing.check.finding import equal, judge


def test_a_finding_counts_and_tells() -> None:
    held = [(True, "fine"), equal("x", a=1, b=1, c=1)]
    assert judge("rule", held).ok
    finding = judge("rule", [*held, (False, "broken"), equal("y", a=1, b=2)])
    assert finding == ("rule", 4, ["broken", "y: a=1, b=2"])
    assert not finding.ok
