from __future__ import annotations

from pathlib import Path

import pytest

from vllm_lite.entrypoints.cli.main import main
from vllm_lite.tracing.canned import write_canned_run

Out = pytest.CaptureFixture[str]


def test_two_runs(tmp_path: Path, capsys: Out) -> None:
    a, b = write_canned_run(tmp_path / "a"), write_canned_run(tmp_path / "b", engine_dies=True)
    assert main(["trace", "diff", str(a), str(b)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("DIFF  B over A  times of stations in ms")
    assert [line.split()[0] for line in lines[1:3]] == ["A", "B"]


def test_one_that_is_none(tmp_path: Path, capsys: Out) -> None:
    a = write_canned_run(tmp_path / "a")
    for pair in ((a, tmp_path / "no"), (tmp_path / "no", a)):
        assert main(["trace", "diff", *map(str, pair)]) == 2
        assert capsys.readouterr().err.startswith(f"vllm-lite: {tmp_path / 'no'} is no folder; `vllm-lite trace run --out ")
