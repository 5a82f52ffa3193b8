from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vllm_lite.exceptions import VLLMValidationError
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


def test_the_highest_lease_is_in_force_whoever_ends_first(tmp_path: Path) -> None:
    page = ControlPage.create(tmp_path, level=1)
    first, second = page.lease(3, count=5), page.lease(2)
    assert (page.level, page.count) == (3, 5)
    page.release(first)
    assert (page.level, page.count) == (2, -1)
    page.level = 0
    assert page.level == 2
    page.release(second)
    assert page.level == 0
    page.close()


def test_the_lease_of_a_process_that_was_killed_ends_with_the_next_request(tmp_path: Path) -> None:
    page = ControlPage.create(tmp_path, level=0)
    program = "import os, sys, pathlib; from vllm_lite.tracing.control_page import ControlPage as C; "
    program += "C.open(pathlib.Path(sys.argv[1])).lease(3, 7); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == -9
    assert (page.level, page.count) == (3, 7)
    assert page.admit()
    assert (page.level, page.count) == (0, -1)
    page.close()


def test_there_are_not_more_leases_than_places(tmp_path: Path) -> None:
    page = ControlPage.create(tmp_path, level=0)
    for _ in range(4):
        page.lease(1)
    with pytest.raises(VLLMValidationError, match="4 others have raised the trace level"):
        page.lease(1)
    page.close()
