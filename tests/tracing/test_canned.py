from __future__ import annotations

from pathlib import Path

import pytest

from vllm_lite.tracing.canned import write_canned_run
from vllm_lite.tracing.check import check_run, read_client
from vllm_lite.tracing.journey import LATE, Run, load_run


def fates(run: Run, name: str) -> str:
    [request] = [request for request in run.requests if request.accept.external_id == name]
    return "".join(letter.fate for letter in request.letters)


def test_the_story(canned: Run) -> None:
    assert [request.accept.external_id for request in canned.requests] == ["ann", "bob", "cleo"]
    assert (fates(canned, "ann"), fates(canned, "bob"), fates(canned, "cleo")) == ("p" * 7, "pppp", "psspss")
    ann, bob, cleo = canned.requests
    assert [len(request.takes) for request in canned.requests] == [7, 4, 2]
    assert [letter.bag.sort.bag for letter in bob.late] == [4]
    assert [abort.reason for abort in bob.aborts] == ["stop_string"]
    assert len(cleo.stays[0].spells) == 2
    assert [step.index for step in ann.steps] == [0, 1, 2, 3, 4, 5, 6]
    assert [step.index for step in cleo.steps] == [0, 1, 2, 3, 6, 7, 8]
    assert [letter.fate for letter in canned.bags[4].letters] == ["p", LATE]


def test_the_death(dead: Run) -> None:
    assert dead.torn == 1
    assert [request.close.outcome for request in dead.requests if request.close] == ["engine_dead", "finished", "engine_dead"]
    assert [death.engine_index for _, death in dead.deaths] == [0]
    assert [process.role for process in dead.processes if process.died] == ["engine-core", "worker"]


@pytest.mark.parametrize("engine_dies", [False, True])
@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_record_holds_together(tmp_path: Path, level: int, engine_dies: bool) -> None:
    run_dir = write_canned_run(tmp_path / "run", level, engine_dies)
    findings = check_run(load_run(run_dir), read_client(run_dir))
    assert {finding.rule: finding.failures for finding in findings if not finding.ok} == {}
    assert all(finding.checked for finding in findings if level == 3 or finding.rule != "links both ways")


def test_it_is_always_the_same(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_canned_run(tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert len(files) == 7
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)
