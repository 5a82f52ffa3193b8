from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_lite.tracing import spool
from vllm_lite.tracing.clock import Anchor, boot_id
from vllm_lite.tracing.control_page import CONTROL_FILE, ControlPage
from vllm_lite.tracing.reader import CHUNK, RunReader, SegmentReader
from vllm_lite.tracing.records import Bye, Phase, Record
from vllm_lite.tracing.spool import SpoolHeader, SpoolWriter, frame

HEADER = SpoolHeader(1, "frontend", 42, "loop", "host", "boot", 100, 10)


def records_of(run_dir: Path) -> list[Record]:
    return [record for _, record in RunReader(run_dir).poll()]


def write(run_dir: Path, frames: list[list[Record]], header: SpoolHeader = HEADER) -> Path:
    body = frame(msgspec.msgpack.encode(header)) + b"".join(frame(msgspec.msgpack.encode(records)) for records in frames)
    path = run_dir / spool.segment_name(header.role, header.pid, header.thread, 0)
    path.write_bytes(body)
    return path


FRAMES: list[list[Record]] = [[Phase("a", 1, 2)], [Phase("b", 3, 4), Phase("c", 5, 6)], [Bye(7)]]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def cuts() -> st.SearchStrategy[int]:
    size = len(frame(msgspec.msgpack.encode(HEADER))) + sum(len(frame(msgspec.msgpack.encode(f))) for f in FRAMES)
    return st.integers(0, size)


@given(cut=cuts())
def test_a_file_cut_at_any_byte_gives_its_whole_frames(scratch: Path, cut: int) -> None:
    path = write(scratch, FRAMES)
    data = path.read_bytes()
    path.write_bytes(data[:cut])
    ends = [len(frame(msgspec.msgpack.encode(HEADER)))]
    for records in FRAMES:
        ends.append(ends[-1] + len(frame(msgspec.msgpack.encode(records))))
    whole = sum(end <= cut for end in ends) - 1
    reader = SegmentReader(path)
    assert reader.read()[0] == [record for records in FRAMES[: max(whole, 0)] for record in records]
    assert reader.torn == (cut not in (0, *ends))


@given(cuts=st.lists(cuts(), max_size=8))
def test_a_growing_file_gives_the_same_as_a_whole_one(scratch: Path, cuts: list[int]) -> None:
    path = write(scratch, FRAMES)
    data = path.read_bytes()
    reader, got = SegmentReader(path), []
    for cut in [*sorted(cuts), len(data)]:
        path.write_bytes(data[:cut])
        while True:
            records, size = reader.read()
            got += records
            if not size:
                break
    assert got == [record for records in FRAMES for record in records]
    assert not reader.torn


@given(position=st.integers(0, 400), bit=st.integers(0, 7))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_never_gives_a_wrong_record(scratch: Path, position: int, bit: int) -> None:
    path = write(scratch, FRAMES)
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1 << bit
    path.write_bytes(data)
    reader = SegmentReader(path)
    try:
        got, _ = reader.read()
    except msgspec.DecodeError:
        pytest.fail("a damaged frame must not be decoded")
    everything = [record for records in FRAMES for record in records]
    assert got == everything[: len(got)]
    assert reader.torn


def test_kinds_of_a_newer_version_are_skipped_and_counted(tmp_path: Path) -> None:
    body = msgspec.msgpack.encode([Phase("a", 1, 2), [99, "from the future"], Phase("b", 3, 4)])
    path = write(tmp_path, [])
    path.write_bytes(path.read_bytes() + frame(body))
    reader = RunReader(tmp_path)
    assert [record for _, record in reader.poll()] == [Phase("a", 1, 2), Phase("b", 3, 4)]
    assert reader.unknown == 1
    assert reader.torn == 0


def test_a_tail_reads_on_where_it_stopped(run_dir: Path) -> None:
    writer = SpoolWriter(run_dir, "frontend", "loop", HEADER, segment_bytes=200)
    reader = RunReader(run_dir)
    got = []
    for number in range(40):
        writer.write([Phase("a", number, number)])
        got.append([record for _, record in reader.poll()])
    assert got == [[Phase("a", number, number)] for number in range(40)]
    assert len(list(run_dir.glob("*.vlt"))) > 5


def test_a_limit_leaves_the_rest_for_the_next_poll(run_dir: Path) -> None:
    other = msgspec.structs.replace(HEADER, thread="other")
    many: list[list[Record]] = [[Phase("x" * 1000, number, number)] for number in range(1000)]
    write(run_dir, many)
    write(run_dir, many, other)
    reader, polls = RunReader(run_dir), []
    while not polls or reader.behind:
        polls.append([record.newest for _, record in reader.poll(limit=CHUNK * 2)])
    assert sorted(t for times in polls for t in times) == sorted([*range(1000), *range(1000)])
    assert len(polls) >= 4
    # The two spools advance together: after each poll neither is much further than the other.
    assert len(polls[0]) < 2 * 300
    assert max(polls[0]) < 300


def test_processes_and_their_farewells(run_dir: Path) -> None:
    write(run_dir, FRAMES)
    write(run_dir, FRAMES[:1], msgspec.structs.replace(HEADER, thread="output"))
    write(run_dir, FRAMES, msgspec.structs.replace(HEADER, role="worker", pid=43, thread="rank0"))
    reader = RunReader(run_dir)
    list(reader.poll())
    first, second = sorted(reader.processes.values(), key=lambda process: process.pid)
    assert (first.role, first.threads, first.ended) == ("frontend", {"loop": True, "output": False}, False)
    assert (second.role, second.threads, second.ended) == ("worker", {"rank0": True}, True)
    assert not reader.look_alive()  # another host's processes are not for us to see
    assert first.died


def test_look_alive_knows_the_processes_of_this_boot(run_dir: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    own = msgspec.structs.replace(HEADER, pid=child.pid, host=socket.gethostname(), boot_id=boot_id())
    write(run_dir, FRAMES[:1], own)
    reader = RunReader(run_dir)
    list(reader.poll())
    assert reader.look_alive()
    child.communicate(b"\n")
    assert not reader.look_alive()
    assert os.path.exists(run_dir)


def test_all_of_a_boot_are_converted_by_the_runs_anchor(tmp_path: Path) -> None:
    ControlPage.create(tmp_path, level=1, anchor=Anchor(5_000, 1_000, "boot")).close()
    write(tmp_path, FRAMES)
    write(tmp_path, FRAMES, msgspec.structs.replace(HEADER, role="worker", wall_ns=900, mono_ns=1))
    elsewhere = msgspec.structs.replace(HEADER, role="engine-core", host="other", boot_id="other", wall_ns=700, mono_ns=100)
    write(tmp_path, FRAMES, elsewhere)
    reader = RunReader(tmp_path)
    list(reader.poll())
    assert {process.role: process.wall(1_001) for process in reader.processes.values()} == {
        "frontend": 5_001,
        "worker": 5_001,
        "engine-core": 1_601,
    }


@pytest.mark.parametrize("page", [None, b"not a page"])
def test_without_its_page_the_headers_anchor_counts(tmp_path: Path, page: bytes | None) -> None:
    write(tmp_path, FRAMES)
    if page:
        (tmp_path / CONTROL_FILE).write_bytes(page * 50)
    reader = RunReader(tmp_path)
    list(reader.poll())
    assert [process.wall(11) for process in reader.processes.values()] == [101]


def test_a_segment_that_went_is_passed_over(run_dir: Path) -> None:
    writer = SpoolWriter(run_dir, "frontend", "loop", HEADER, segment_bytes=150)
    for number in range(18):
        writer.write([Phase("a", number, number)])
    reader = RunReader(run_dir)
    before = [record.newest for _, record in reader.poll(limit=1)]
    spool.segments(run_dir)["frontend-42-loop"][1].unlink()
    after = [record.newest for _, record in reader.poll()]
    assert before == [0, 1, 2, 3]
    assert after == list(range(8, 18))


@pytest.mark.parametrize("content", [b"no spool at all", frame(b"\x93\x01\x02\x03"), frame(b"\xc1"), frame(b"")])
def test_a_file_that_is_no_spool_is_counted_as_damaged(run_dir: Path, content: bytes) -> None:
    write(run_dir, FRAMES)
    (run_dir / "frontend-7-loop.vlt").write_bytes(content)
    reader = RunReader(run_dir)
    assert len(list(reader.poll())) == 4
    assert reader.torn == 1


def test_a_frame_that_is_no_list_is_skipped_and_counted(run_dir: Path) -> None:
    path = write(run_dir, [])
    path.write_bytes(path.read_bytes() + frame(b"\x01") + frame(b"\xc1") + frame(msgspec.msgpack.encode([Bye(7)])))
    reader = RunReader(run_dir)
    assert [record for _, record in reader.poll()] == [Bye(7)]
    assert reader.unknown == 2


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_counted_as_damaged(run_dir: Path, make: Callable[[Path], None]) -> None:
    write(run_dir, FRAMES)
    make(run_dir / "frontend-7-loop.vlt")
    reader = RunReader(run_dir)
    assert len(list(reader.poll())) == 4
    assert reader.torn == 1
