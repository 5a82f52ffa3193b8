from __future__ import annotations

import json
from pathlib import Path

import pytest

from vllm_lite.entrypoints.cli.main import main
from vllm_lite.entrypoints.cli.trace_check import RULES
from vllm_lite.tracing.canned import write_canned_run
from vllm_lite.tracing.check import check_run
from vllm_lite.tracing.journey import load_run

Out = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_canned_run(tmp_path / "run")


def rules(text: str) -> dict[str, tuple[int, int]]:
    """(checked, failed) by rule, from the printed table."""
    table = [line for line in text.splitlines()[2:-1] if not line.startswith(" ")]
    return {" ".join(line.split()[:-2]): (int(line.split()[-2].replace(",", "")), int(line.split()[-1])) for line in table}


def test_every_rule_has_a_flag(run: Path) -> None:
    assert [rule for rule, _ in RULES.values()] == [finding.rule for finding in check_run(load_run(run))]


def test_a_run_that_holds(run: Path, capsys: Out) -> None:
    assert main(["trace", "check", str(run)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("CHECK  3 requests  9 steps  9 bags  3 callers' records  ----")
    assert all(checked > 0 and failed == 0 for checked, failed in rules(text).values())
    assert text.splitlines()[-1] == f"all {len(RULES)} rules hold"


def test_who_died_is_told(tmp_path: Path, capsys: Out) -> None:
    assert main(["trace", "check", str(write_canned_run(tmp_path / "dead", engine_dies=True))]) == 0
    assert "callers' records  2 processes died  ---" in capsys.readouterr().out


def test_only_the_rules_that_were_asked_for(run: Path, capsys: Out) -> None:
    assert main(["trace", "check", str(run), "--no-orphans", "--unique-ids"]) == 0
    assert list(rules(capsys.readouterr().out)) == ["no orphans", "unique span ids"]


def test_a_caller_that_says_otherwise_fails_the_check(run: Path, tmp_path: Path, capsys: Out) -> None:
    lines = [json.loads(line) for line in (run / "client.jsonl").read_text().splitlines()]
    for line in lines:
        line["takes"] += 1
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(json.dumps(line) for line in lines))
    assert main(["trace", "check", str(run), "--against", str(other)]) == 1
    text = capsys.readouterr().out
    assert rules(text)["tokens add up"][1] == 3
    assert f"    request {lines[0]['request_id']} takes: " in text
    assert text.splitlines()[-1] == f"1 rule of {len(RULES)} broken"
    assert main(["trace", "check", str(run), "--against", str(other), "--bags"]) == 0


def test_more_failures_than_a_screen_holds_are_counted(run: Path, tmp_path: Path, capsys: Out) -> None:
    strangers = [{"request_id": f"stranger-{i}", "token_ids": [], "takes": 0, "traceparent": None} for i in range(9)]
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(json.dumps(line) for line in strangers))
    assert main(["trace", "check", str(run), "--against", str(other), "--tokens"]) == 1
    assert "    : 7 more" in capsys.readouterr().out


def test_a_torn_line_is_counted(run: Path, capsys: Out) -> None:
    with (run / "client.jsonl").open("a") as file:
        file.write('{"request_id": "ca')
    assert main(["trace", "check", str(run)]) == 0
    assert "callers' records (1 torn)" in capsys.readouterr().out


def test_without_a_callers_record_the_spools_are_checked_alone(run: Path, capsys: Out) -> None:
    (run / "client.jsonl").unlink()
    assert main(["trace", "check", str(run)]) == 0
    assert "no caller's record" in capsys.readouterr().out


def test_1_from_the_callers_span_every_service_is_reached(run: Path, capsys: Out) -> None:
    accept = load_run(run).requests[0].accept
    line = ["trace", "check", str(run), "--reachable-from"]
    caller = f"00-{accept.trace_id}-{accept.parent_span_id or '7' * 16}-01"
    assert main([*line, caller, "--services", "frontend"]) == 1  # the canned callers have no spans
    assert rules(capsys.readouterr().out) == {"reachable": (1, 1)}
    assert main([*line, f"00-{accept.trace_id}-{accept.span_id}-01"]) == 0
    text = capsys.readouterr().out
    assert rules(text) == {"reachable": (3, 0)}
    assert text.splitlines()[-1] == "the rule holds"
    assert main([*line, caller, "--services", "frontend,router"]) == 2
    assert main([*line, "me"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("vllm-lite: --services must be among frontend, engine-core, worker")
    assert said[1].startswith("vllm-lite: --reachable-from must be a traceparent")


def test_8_a_run_whose_engine_core_was_killed(run: Path, tmp_path: Path, capsys: Out) -> None:
    dead = write_canned_run(tmp_path / "dead", engine_dies=True)
    assert main(["trace", "check", str(dead), "--engine-dead"]) == 0
    assert list(rules(capsys.readouterr().out)) == ["engine dead"]
    assert main(["trace", "check", str(dead), "--engine-dead", "--bags"]) == 0
    assert list(rules(capsys.readouterr().out)) == ["bags add up", "engine dead"]
    assert main(["trace", "check", str(run), "--engine-dead"]) == 1
    assert "no engine core was killed" in capsys.readouterr().out


def test_files_that_are_not_there_or_not_right(run: Path, tmp_path: Path, capsys: Out) -> None:
    assert main(["trace", "check", str(tmp_path / "nothing")]) == 2
    assert main(["trace", "check", str(run), "--against", str(tmp_path / "nothing")]) == 2
    (tmp_path / "bad.jsonl").write_text("{")
    assert main(["trace", "check", str(run), "--against", str(tmp_path / "bad.jsonl")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert "is no folder" in said[0]
    for line in said[1:]:
        assert line.startswith("vllm-lite: --against must be a file of JSON lines, each with a request_id")
