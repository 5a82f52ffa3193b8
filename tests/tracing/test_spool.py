from __future__ import annotations

import errno
import logging
import os
import zlib
from pathlib import Path

import msgspec
import pytest

from vllm_lite.tracing import spool
from vllm_lite.tracing.reader import SegmentReader
from vllm_lite.tracing.records import Bye, Dropped, Phase, Record
from vllm_lite.tracing.spool import SpoolHeader, SpoolWriter, segment_name, segments, trim

HEADER = SpoolHeader(1, "frontend", 42, "loop", "host", "boot", 100, 10)


def read(path: Path) -> list[Record]:
    reader = SegmentReader(path)
    records: list[Record] = []
    while True:
        more, size = reader.read()
        records += more
        if not size:
            assert not reader.torn
            return records


def phase(number: int) -> Phase:
    return Phase("load", number, number + 1)


def test_the_bytes_of_a_spool(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "frontend", "loop", HEADER)
    writer.write([phase(1)])
    writer.close(Bye(9))
    body = bytes.fromhex("91953ca46c6f61640102c0")
    expected = spool.frame(msgspec.msgpack.encode(HEADER)) + spool.frame(body) + spool.frame(bytes.fromhex("91923f09"))
    assert (tmp_path / "frontend-42-loop.vlt").read_bytes() == expected
    assert spool.frame(body)[:8] == bytes.fromhex("0b000000") + zlib.crc32(body).to_bytes(4, "little")


@pytest.mark.parametrize("bad", [Phase("\ud800", 1, 2), Phase("load", 2**70, 2), Phase("load", object(), 2)])  # type: ignore[arg-type]
def test_a_record_that_cannot_be_written_is_counted_and_costs_no_other(tmp_path: Path, bad: Phase) -> None:
    writer = SpoolWriter(tmp_path, "frontend", "loop", HEADER)
    writer.write([phase(1), bad, phase(3)])
    writer.write([bad])
    writer.close(Bye(9))
    dropped = Dropped(1, "a value that cannot be written")
    assert read(tmp_path / "frontend-42-loop.vlt") == [dropped, phase(1), phase(3), dropped, Bye(9)]


def test_nothing_written_leaves_no_file(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "frontend", "loop")
    writer.close(Bye(1))
    assert list(tmp_path.iterdir()) == []


def test_the_header_says_who_writes(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "worker", "rank0")
    writer.write([phase(1)])
    writer.close(Bye(2))
    [path] = tmp_path.iterdir()
    reader = SegmentReader(path)
    reader.read()
    assert reader.header is not None
    assert (reader.header.role, reader.header.pid, reader.header.thread) == ("worker", os.getpid(), "rank0")
    assert path.stat().st_mode & 0o777 == 0o600


def test_segments_follow_each_other(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "frontend", "loop", HEADER, segment_bytes=300)
    for number in range(60):
        writer.write([phase(number)])
    writer.close(Bye(99))
    paths = segments(tmp_path)["frontend-42-loop"]
    assert len(paths) > 2
    assert [path.name for path in paths[:3]] == ["frontend-42-loop.vlt", "frontend-42-loop.1.vlt", "frontend-42-loop.2.vlt"]
    assert [record for path in paths for record in read(path)] == [*map(phase, range(60)), Bye(99)]


def test_ten_segments_are_in_order_of_number(tmp_path: Path) -> None:
    for number in (10, 2, 0, 9):
        (tmp_path / segment_name("frontend", 1, "loop", number)).touch()
    assert [path.name for path in segments(tmp_path)["frontend-1-loop"]] == [
        "frontend-1-loop.vlt",
        "frontend-1-loop.2.vlt",
        "frontend-1-loop.9.vlt",
        "frontend-1-loop.10.vlt",
    ]


def test_a_run_that_grows_beyond_its_cap_loses_its_oldest_segments_and_says_so(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "frontend", "loop", HEADER, segment_bytes=300, run_bytes=1500)
    for number in range(200):
        writer.write([phase(number)])
    writer.close(Bye(999))
    paths = segments(tmp_path)["frontend-42-loop"]
    assert sum(path.stat().st_size for path in paths) < 1500 + 2 * 400
    records = [record for path in paths for record in read(path)]
    kept = [record.t0 for record in records if isinstance(record, Phase)]
    assert kept == list(range(kept[0], 200))
    dropped = sum(record.count for record in records if isinstance(record, spool.Dropped))
    assert 0 < dropped <= int(paths[0].name.split(".")[1])


def test_trim_takes_the_oldest_finished_ones_and_never_one_in_use(tmp_path: Path) -> None:
    for age, name in enumerate(("a-1-x.vlt", "b-1-x.vlt", "a-1-x.1.vlt", "a-1-x.2.vlt", "b-1-x.1.vlt")):
        path = tmp_path / name
        path.write_bytes(b"." * 100)
        os.utime(path, ns=(age, age))
    assert trim(tmp_path, 500) == []
    assert trim(tmp_path, 350) == ["a-1-x.vlt", "b-1-x.vlt"]
    assert trim(tmp_path, 0) == ["a-1-x.1.vlt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-1-x.2.vlt", "b-1-x.1.vlt"]


def test_a_process_with_the_number_of_an_earlier_one_starts_a_new_segment(tmp_path: Path) -> None:
    for number in (1, 2):
        writer = SpoolWriter(tmp_path, "frontend", "loop", HEADER)
        writer.write([phase(number)])
        writer.close(Bye(number))
    assert [len(read(path)) for path in segments(tmp_path)["frontend-42-loop"]] == [2, 2]


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: whole(fd, data[:7]))
    writer = SpoolWriter(tmp_path, "frontend", "loop", HEADER)
    writer.write([phase(1), phase(2)])
    writer.close(Bye(3))
    monkeypatch.undo()
    assert read(tmp_path / "frontend-42-loop.vlt") == [phase(1), phase(2), Bye(3)]


def test_a_full_disk_switches_off_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = SpoolWriter(tmp_path, "frontend", "loop", HEADER)
    writer.write([phase(1)])
    monkeypatch.setattr(os, "write", full)
    with caplog.at_level(logging.WARNING):
        writer.write([phase(2)])
        writer.write([phase(3)])
        writer.close(Bye(4))
    assert writer.failed
    assert [record.getMessage() for record in caplog.records] == [
        f"tracing of this thread stops: cannot write to {tmp_path}: [Errno 28] No space left on device"
    ]
    monkeypatch.undo()
    assert read(tmp_path / "frontend-42-loop.vlt") == [phase(1)]


def test_a_directory_that_is_gone_switches_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = SpoolWriter(tmp_path / "gone", "frontend", "loop", HEADER)
    writer.write([phase(1)])
    assert writer.failed
    assert len(caplog.records) == 1
