from __future__ import annotations

from vllm_lite.tracing.check.finding import Finding


def test_a_finding_counts_and_tells() -> None:
    finding = Finding("rule")
    assert finding.ok
    finding.expect(True, "fine")
    finding.equal("x", a=1, b=1, c=1)
    assert finding.ok
    finding.expect(False, "broken")
    finding.equal("y", a=1, b=2)
    assert (finding.checked, finding.failures, finding.ok) == (4, ["broken", "y: a=1, b=2"], False)
