"""Reads the spools of a run directory: whole, or again and again while they grow.

Process: readers (exporter, console, check). Knows: files, frames, clocks, who wrote. Does not know: what records mean.
A last frame that was cut short is left out and counted; records of kinds that a newer writer knows are skipped and counted.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from vllm_lite.tracing import spool
from vllm_lite.tracing.clock import Anchor, boot_id
from vllm_lite.tracing.control_page import ControlPage
from vllm_lite.tracing.process import Process
from vllm_lite.tracing.records import AnyRecord, Bye, Record

_FRAMES = msgspec.msgpack.Decoder(list[AnyRecord])
_RAW = msgspec.msgpack.Decoder(list[msgspec.Raw])
_ONE = msgspec.msgpack.Decoder(AnyRecord)
_HEADER = msgspec.msgpack.Decoder(spool.SpoolHeader)
CHUNK = 1 << 20


class SegmentReader:
    """Reads one file from where it stopped the last time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: spool.SpoolHeader | None = None
        self.unknown = 0
        self.damaged = False  # a frame's checksum is wrong: nothing behind it can be trusted
        self._offset = 0
        self._rest = b""  # an incomplete frame at the end of what was read

    @property
    def torn(self) -> bool:
        """The file ends in the middle of a frame, or is damaged."""
        return bool(self._rest) or self.damaged

    def frames(self) -> Iterator[list[Record]]:
        """The complete frames that were added since the last call."""
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(self._offset)
                while not self.damaged and (data := file.read(CHUNK)):
                    self._offset += len(data)
                    yield from self._split(self._rest + data)
        except FileNotFoundError:  # the run grew beyond its cap
            return

    def _split(self, data: bytes) -> Iterator[list[Record]]:
        start, head = 0, spool.FRAME_HEAD
        while start + head.size <= len(data):
            length, checksum = head.unpack_from(data, start)
            end = start + head.size + length
            if end > len(data):
                break
            body = data[start + head.size : end]
            if zlib.crc32(body) != checksum:
                self.damaged = True
                return
            start = end
            if self.header is None:
                self.header = _HEADER.decode(body)
            else:
                yield self._decode(body)
        self._rest = data[start:]

    def _decode(self, body: bytes) -> list[Record]:
        try:
            return list(_FRAMES.decode(body))
        except msgspec.ValidationError:
            return list(self._decode_each(body))

    def _decode_each(self, body: bytes) -> Iterator[Record]:
        for raw in _RAW.decode(body):
            try:
                yield _ONE.decode(raw)
            except msgspec.ValidationError:
                self.unknown += 1


class RunReader:
    """All spools of one run directory. Each `poll` gives what was written since the last one."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.processes: dict[tuple[str, str, int, str], Process] = {}  # by host, boot, pid, role
        self.segments: dict[str, SegmentReader] = {}  # by file name
        self._anchors: dict[str, Anchor] = {}  # by boot
        try:
            page = ControlPage.open(run_dir)
            self._anchors[page.anchor.boot_id] = page.anchor
            page.close()
        except (FileNotFoundError, ValueError):  # spools that were copied away from their page carry anchors of their own
            pass

    def poll(self) -> Iterator[tuple[Process, Record]]:
        """New records, spool by spool; within a spool in the order they were written."""
        for paths in spool.segments(self.run_dir).values():
            for path in paths:
                segment = self.segments.setdefault(path.name, SegmentReader(path))
                for frame in segment.frames():
                    assert segment.header is not None
                    process = self._process(segment.header)
                    for record in frame:
                        if type(record) is Bye:
                            process.threads[segment.header.thread] = True
                        yield process, record

    @property
    def torn(self) -> int:
        """How many files end in the middle of a frame."""
        return sum(segment.torn for segment in self.segments.values())

    @property
    def unknown(self) -> int:
        """How many records were of a kind that this version does not know."""
        return sum(segment.unknown for segment in self.segments.values())

    def look_alive(self) -> bool:
        """Find out which processes still run; False once none does."""
        host, boot = socket.gethostname(), boot_id()
        for process in self.processes.values():
            process.alive = (process.host, process.boot_id) == (host, boot) and not process.ended and is_alive(process.pid)
        return any(process.alive for process in self.processes.values())

    def _process(self, header: spool.SpoolHeader) -> Process:
        key = (header.host, header.boot_id, header.pid, header.role)
        if key not in self.processes:
            anchor = self._anchors.setdefault(header.boot_id, Anchor(header.wall_ns, header.mono_ns, header.boot_id))
            self.processes[key] = Process(header.role, header.pid, header.host, header.boot_id, anchor.offset)
        process = self.processes[key]
        process.threads.setdefault(header.thread, False)
        return process


def is_alive(pid: int) -> bool:
    """Whether process `pid` of this host runs; one that ended and was not yet waited for does not."""
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except PermissionError:
        return True
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")
