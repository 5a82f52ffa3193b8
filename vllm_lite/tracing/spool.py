"""The file format of a spool: frames of (length, crc32, body), the first one a header.

Process: all write, readers and the exporter read. Knows: bytes, files, who writes. Does not know: what records mean.
A spool is cut into segments, `<role>-<pid>-<thread>.vlt`, then `.1.vlt`, `.2.vlt`, each with a header of its own. The first
file appears with the first record, so an untraced run leaves none.
Mirrors: nothing in vLLM.
"""

import logging
import os
import socket
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from vllm_lite.tracing.clock import clock_anchor
from vllm_lite.tracing.records import Dropped, Record

logger = logging.getLogger(__name__)

SCHEMA = 1
SUFFIX = ".vlt"
FRAME_HEAD = struct.Struct("<II")
SEGMENT_BYTES = 64 << 20
RUN_BYTES = 2 << 30


class SpoolHeader(msgspec.Struct):
    """First frame: who writes, how its monotonic clock relates to the wall clock (both in ns, read together), and who started
    that process."""

    schema: int
    role: str
    pid: int
    thread: str
    host: str
    boot_id: str
    wall_ns: int
    mono_ns: int
    parent_pid: int = 0


class SpoolWriter:
    """One thread's spool. `failed` is True after a write error; nothing is written then and nothing ever raises.

    `header` is this process's own unless given. A segment that has grown beyond `segment_bytes` is followed by a new one, and
    the oldest finished segments of the run go while it holds more than `run_bytes`.
    """

    def __init__(
        self,
        run_dir: Path,
        role: str,
        thread: str,
        header: SpoolHeader | None = None,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        run_bytes: int = RUN_BYTES,
    ) -> None:
        self._run_dir = run_dir
        self._header = header or _own_header(role, thread)
        self._segment_bytes, self._run_bytes = segment_bytes, run_bytes
        self._segment = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._fd: int | None = None
        self._size = 0
        self.failed = False

    def write(self, records: Sequence[Record]) -> None:
        """Append one frame with these records."""
        if self.failed:
            return
        try:
            if self._fd is None:
                self._open()
            try:
                body = self._encoder.encode(records)
            except Exception:
                body = self._encode_what_can_be(records)
            self._put(body)
            if self._size > self._segment_bytes:
                self._next_segment()
        except OSError as error:
            self.failed = True
            logger.warning("tracing of this thread stops: cannot write to %s: %s", self._run_dir, error)

    def _encode_what_can_be(self, records: Sequence[Record]) -> bytes:
        """All but those with a lone surrogate or an integer beyond 64 bits, say."""
        kept = [record for record in records if self._encodes(record)]
        lost = len(records) - len(kept)
        logger.warning("tracing drops %d records that hold a value which cannot be written", lost)
        self._put_dropped(lost, "a value that cannot be written")
        return self._encoder.encode(kept)

    def _encodes(self, record: Record) -> bool:
        try:
            self._encoder.encode(record)
        except Exception:
            return False
        return True

    def close(self, last: Record) -> None:
        """Append `last` and close; a spool that was never opened stays absent."""
        if self._fd is not None:
            self.write([last])
            os.close(self._fd)
            self._fd = None

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        while self._fd is None:
            header = self._header
            path = self._run_dir / segment_name(header.role, header.pid, header.thread, self._segment)
            try:
                self._fd = os.open(path, flags, 0o600)
            except FileExistsError:  # a process of the same number ran here before
                self._segment += 1
        self._size = 0
        self._put(self._encoder.encode(self._header))

    def _put(self, body: bytes) -> None:
        assert self._fd is not None
        data = frame(body)
        written = os.write(self._fd, data)
        while written < len(data):
            written += os.write(self._fd, data[written:])
        self._size += len(data)

    def _next_segment(self) -> None:
        assert self._fd is not None
        os.close(self._fd)
        self._fd = None
        self._segment += 1
        self._open()
        removed = trim(self._run_dir, self._run_bytes)
        if removed:
            reason = f"the run grew beyond {self._run_bytes} bytes; its oldest segments went: {', '.join(removed)}"
            self._put_dropped(len(removed), reason)

    def _put_dropped(self, count: int, reason: str) -> None:
        self._put(self._encoder.encode([Dropped(count, reason)]))


def frame(body: bytes) -> bytes:
    """`body` with its length and checksum before it."""
    return FRAME_HEAD.pack(len(body), zlib.crc32(body)) + body


def segment_name(role: str, pid: int, thread: str, segment: int) -> str:
    """The file of one segment; the first carries no number."""
    return f"{role}-{pid}-{thread}{f'.{segment}' if segment else ''}{SUFFIX}"


def segments(run_dir: Path) -> dict[str, list[Path]]:
    """The spool files of a run, by spool (name without segment number), each in the order they were written."""
    spools: dict[str, list[tuple[int, Path]]] = {}
    for path in run_dir.glob(f"*{SUFFIX}"):
        stem, _, number = path.name.removesuffix(SUFFIX).partition(".")
        spools.setdefault(stem, []).append((int(number) if number.isdecimal() else 0, path))
    return {stem: [path for _, path in sorted(spools[stem])] for stem in sorted(spools)}


def trim(run_dir: Path, run_bytes: int) -> list[str]:
    """Remove the oldest finished segments until the run holds no more than `run_bytes`; returns their names."""
    total, finished = 0, []
    for paths in segments(run_dir).values():
        for path in paths:
            try:
                stat = path.stat()
            except FileNotFoundError:  # another writer was quicker
                continue
            total += stat.st_size
            if path is not paths[-1]:
                finished.append((stat.st_mtime_ns, stat.st_size, path))
    removed = []
    for _, size, path in sorted(finished):
        if total <= run_bytes:
            break
        path.unlink(missing_ok=True)
        removed.append(path.name)
        total -= size
    return removed


def _own_header(role: str, thread: str) -> SpoolHeader:
    wall_ns, mono_ns, boot_id = clock_anchor()
    return SpoolHeader(SCHEMA, role, os.getpid(), thread, socket.gethostname(), boot_id, wall_ns, mono_ns, os.getppid())
