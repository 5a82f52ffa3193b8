"""Engine cores are killed for real; what came of it is held against the bars."""

from __future__ import annotations

import sys

import pytest

from benchmarks import death


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["death.py", *arguments])
    return death.main()


def test_every_caller_is_told_and_no_process_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--moments", "1", "--callers", "3") == 0
    assert "1 deaths, 3 callers each: all told after" in capsys.readouterr().out


@pytest.mark.parametrize(("found", "code"), [((0.9, 0), 0), ((1.1, 0), 1), ((0.1, 1), 1)])
def test_bars(monkeypatch: pytest.MonkeyPatch, found: tuple[float, int], code: int) -> None:
    async def one_death(*_: object) -> tuple[float, int]:
        return found

    monkeypatch.setattr(death, "one_death", one_death)
    assert run(monkeypatch, "--moments", "3") == code
