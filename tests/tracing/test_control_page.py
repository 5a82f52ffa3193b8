from __future__ import annotations

from pathlib import Path

import pytest

from vllm_lite.tracing.clock import Anchor
from vllm_lite.tracing.control_page import CONTROL_FILE, ControlPage


def test_a_page_is_seen_by_all_who_map_it(tmp_path: Path) -> None:
    writer = ControlPage.create(tmp_path, level=1, count=2, pid=77, anchor=Anchor(30, 10, "boot"))
    reader = ControlPage.open(tmp_path)
    assert (reader.level, reader.count, reader.pid) == (1, 2, 77)
    assert reader.anchor == Anchor(30, 10, "boot")
    writer.level = 3
    assert reader.level == 3
    for page in (writer, reader):
        page.close()


def test_a_used_up_count_admits_no_more_and_cuts_nobody_short(tmp_path: Path) -> None:
    page = ControlPage.create(tmp_path, level=2, count=2)
    assert [page.admit() for _ in range(4)] == [True, True, False, False]
    assert (page.level, page.count) == (2, 0)
    page.close()


def test_a_negative_count_is_no_limit(tmp_path: Path) -> None:
    page = ControlPage.create(tmp_path, level=2)
    assert all(page.admit() for _ in range(5))
    assert page.count == -1
    page.close()


def test_a_page_is_made_once(tmp_path: Path) -> None:
    ControlPage.create(tmp_path, level=0).close()
    with pytest.raises(FileExistsError):
        ControlPage.create(tmp_path, level=0)


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / CONTROL_FILE).write_bytes(b"x" * 200)
    with pytest.raises(ValueError, match="not a vllm-lite control page"):
        ControlPage.open(tmp_path)
