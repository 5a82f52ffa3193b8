from __future__ import annotations

from pathlib import Path

from vllm_lite.tracing.exporter.tidy import Tidy

ALL = float("inf")


def spools(run_dir: Path) -> list[str]:
    return sorted(path.name for path in run_dir.glob("*.vlt"))


def test_a_finished_segment_goes_once_nothing_that_began_in_it_is_open(run_dir: Path) -> None:
    for name in ("a-1-x.vlt", "a-1-x.1.vlt", "b-1-x.vlt"):
        (run_dir / name).touch()
    tidy = Tidy(run_dir)
    assert [path.name for path in tidy.finished()] == ["a-1-x.vlt"]
    tidy.after_poll(tidy.finished(), poll=3, oldest=2, done_until=ALL)
    tidy.after_poll(tidy.finished(), poll=4, oldest=3, done_until=ALL)
    assert spools(run_dir) == ["a-1-x.1.vlt", "a-1-x.vlt", "b-1-x.vlt"]
    tidy.after_poll(tidy.finished(), poll=5, oldest=4, done_until=3)
    assert "a-1-x.vlt" in spools(run_dir)
    tidy.after_poll(tidy.finished(), poll=6, oldest=4, done_until=5)
    assert spools(run_dir) == ["a-1-x.1.vlt", "b-1-x.vlt"]


def test_a_run_that_is_over_goes_altogether(run_dir: Path) -> None:
    (run_dir / "a-1-x.vlt").touch()
    Tidy(run_dir).remove_all()
    assert not run_dir.exists()


def test_other_peoples_files_stay(run_dir: Path) -> None:
    (run_dir / "a-1-x.vlt").touch()
    (run_dir / "client.jsonl").touch()
    Tidy(run_dir).remove_all()
    assert sorted(path.name for path in run_dir.iterdir()) == ["client.jsonl", "control"]
