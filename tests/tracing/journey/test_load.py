from __future__ import annotations

from pathlib import Path

import pytest

from vllm_lite.tracing.journey import Run, load_run


def test_everything_is_in_the_order_of_time(canned: Run) -> None:
    assert [step.index for step in canned.steps] == list(range(9))
    assert [bag.sort.bag for bag in canned.bags] == list(range(9))
    assert all(bag.step is step and bag.send in step.sends for bag, step in zip(canned.bags, canned.steps, strict=True))
    starts = [process.wall(phase.t0) for process, phase in canned.phases]
    assert starts == sorted(starts)
    assert len(starts) == 10
    assert (canned.torn, canned.unknown, canned.unclaimed, canned.strays) == (0, 0, 0, [])


def test_a_folder_without_spools_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no spools"):
        load_run(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nowhere is no folder; `vllm-lite trace run --out DIR` records a run in one$"):
        load_run(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="file is no folder"):
        load_run(tmp_path / "file")


def test_files_that_only_look_like_spools_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.vlt").write_bytes(b"something else")
    with pytest.raises(FileNotFoundError, match="holds no spool that can be read"):
        load_run(tmp_path)


def test_a_stay_of_no_known_request_is_a_stray(canned_dir: Path, tmp_path: Path) -> None:
    for path in canned_dir.glob("engine-core-*.vlt"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    run = load_run(tmp_path)
    assert [stay.receive.internal_id for stay in run.strays if stay.receive] == [
        "ann-00000001",
        "bob-00000002",
        "cleo-00000003",
    ]
