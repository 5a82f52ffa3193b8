"""The file format of a spool: frames of (length, crc32, body), the first one a header.

Process: all write, readers and the exporter read. Knows: bytes, clocks, who writes. Does not know: what records mean.
The file appears with the first record, so an untraced run leaves none.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from vllm_lite.tracing.records import Record

logger = logging.getLogger(__name__)

SCHEMA = 1
SUFFIX = ".vlt"
FRAME_HEAD = struct.Struct("<II")


class SpoolHeader(msgspec.Struct):
    """First frame: who writes, and how its monotonic clock relates to the wall clock (both in ns, read together)."""

    schema: int
    role: str
    pid: int
    thread: str
    host: str
    boot_id: str
    wall_ns: int
    mono_ns: int


class SpoolWriter:
    """One thread's spool. `failed` is True after a write error; nothing is written then and nothing ever raises."""

    def __init__(self, run_dir: Path, role: str, thread: str) -> None:
        self._path = run_dir / f"{role}-{os.getpid()}-{thread}{SUFFIX}"
        self._role, self._thread = role, thread
        self._encoder = msgspec.msgpack.Encoder()
        self._fd: int | None = None
        self.failed = False

    def write(self, records: Sequence[Record]) -> None:
        """Append one frame with these records."""
        if self.failed:
            return
        try:
            if self._fd is None:
                self._open()
            assert self._fd is not None
            os.write(self._fd, frame(self._encoder.encode(records)))
        except OSError as error:
            self.failed = True
            logger.warning("tracing stops here: cannot write %s: %s", self._path, error)

    def close(self, last: Record) -> None:
        """Append `last` and close; a spool that was never opened stays absent."""
        if self._fd is not None:
            self.write([last])
            os.close(self._fd)
            self._fd = None

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        wall, mono = clock_anchor()
        header = SpoolHeader(SCHEMA, self._role, os.getpid(), self._thread, socket.gethostname(), boot_id(), wall, mono)
        os.write(self._fd, frame(self._encoder.encode(header)))


def frame(body: bytes) -> bytes:
    """`body` with its length and checksum before it."""
    return FRAME_HEAD.pack(len(body), zlib.crc32(body)) + body


def clock_anchor() -> tuple[int, int]:
    """(wall, monotonic) in ns, read as close together as a few tries allow."""
    best = (1 << 62, 0, 0)
    for _ in range(50):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        best = min(best, (after - before, wall, (before + after) // 2))
    return best[1], best[2]


def boot_id() -> str:
    """Which boot the monotonic clock counts from; "" where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
