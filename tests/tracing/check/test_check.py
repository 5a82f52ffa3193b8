from __future__ import annotations

import json
from pathlib import Path

from vllm_lite.tracing.check import check_run, judge, read_client, read_lines
from vllm_lite.tracing.journey import Run


def test_a_finding_counts_and_tells() -> None:
    assert judge("rule", [(True, "fine")]).ok
    finding = judge("rule", [(True, "fine"), (False, "broken"), (True, "well"), (False, "lost")])
    assert finding == ("rule", 4, ["broken", "lost"])
    assert not finding.ok


def test_every_rule_is_applied(canned: Run, canned_dir: Path) -> None:
    findings = check_run(canned, read_client(canned_dir))
    assert [finding.rule for finding in findings] == [
        "one end per request",
        "letters add up",
        "tokens add up",
        "bags add up",
        "steps and bags",
        "aborts",
        "no orphans",
        "unique span ids",
        "one root per trace",
        "nesting",
        "links",
        "links both ways",
        "nothing lost",
    ]
    assert all(finding.ok and finding.checked for finding in findings)


def test_the_callers_record(tmp_path: Path) -> None:
    assert read_client(tmp_path) is None
    (tmp_path / "client.jsonl").write_text(json.dumps({"request_id": "a"}) + "\n\n" + json.dumps({"request_id": "b"}) + "\n")
    assert read_client(tmp_path) == [{"request_id": "a"}, {"request_id": "b"}]


def test_lines_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    odd = b'[]\n{}\n{"request_id": 3}\n{"request_id": "c", "traceparent": 7}\n{"request_id": "c", "token_ids": 7}\n'
    (tmp_path / "client.jsonl").write_bytes(b'{"request_id": "a"}\n\xff\n' + odd + b'{"request_id": "b", "tok')
    assert read_lines(tmp_path / "client.jsonl") == ([{"request_id": "a"}], 7)
    assert read_client(tmp_path) == [{"request_id": "a"}]
