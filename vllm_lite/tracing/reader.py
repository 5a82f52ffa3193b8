"""Reads the spools of a run directory: whole, or again and again while they grow.

Process: readers (exporter, console, check). Knows: files, frames, clocks, who wrote. Does not know: what records mean.
A last frame that was cut short is left out and counted; records of kinds that a newer writer knows are skipped and counted.
Mirrors: nothing in vLLM.
"""

import socket
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from vllm_lite.tracing import spool
from vllm_lite.tracing.clock import Anchor, boot_id
from vllm_lite.tracing.control_page import ControlPage
from vllm_lite.tracing.process import Process, is_alive
from vllm_lite.tracing.records import AnyRecord, Bye, Record

_FRAME = msgspec.msgpack.Decoder(list[AnyRecord])
_RAW = msgspec.msgpack.Decoder(list[msgspec.Raw])
_ONE = msgspec.msgpack.Decoder(AnyRecord)
_HEADER = msgspec.msgpack.Decoder(spool.SpoolHeader)
CHUNK = 256 << 10


class SegmentReader:
    """Reads one file from where it stopped the last time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: spool.SpoolHeader | None = None
        self.unknown = 0
        self.t = 0  # the newest monotonic time read so far
        self.damaged = path.exists() and not path.is_file()  # or a checksum is wrong: nothing behind it can be trusted
        self._offset = 0
        self._rest = b""  # an incomplete frame at the end of what was read

    @property
    def torn(self) -> bool:
        """The file ends in the middle of a frame, or is damaged."""
        return bool(self._rest) or self.damaged

    def read(self) -> tuple[list[Record], int]:
        """The records in the next chunk, and how many bytes that was: 0 at the end of the file."""
        if self.damaged:
            return [], 0
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(self._offset)
                data = file.read(CHUNK)
        except FileNotFoundError:  # the run grew beyond its cap
            return [], 0
        self._offset += len(data)
        records = [record for body in self._bodies(self._rest + data) for record in self._decode(body)]
        self.t = max([self.t, *(record.newest for record in records[-1:])])
        return records, len(data)

    def _bodies(self, data: bytes) -> Iterator[bytes]:
        """The complete frames in `data`, the first of a file apart; an incomplete end waits for more."""
        start, head = 0, spool.FRAME_HEAD
        while start + head.size <= len(data) and not self.damaged:
            length, checksum = head.unpack_from(data, start)
            body = data[start + head.size : start + head.size + length]
            if len(body) < length:
                break
            start += head.size + length
            if zlib.crc32(body) != checksum:
                self.damaged = True
            elif self.header is not None:
                yield body
            else:
                self._open(body)
        self._rest = data[start:]

    def _open(self, body: bytes) -> None:
        try:
            self.header = _HEADER.decode(body)
        except msgspec.DecodeError:  # no spool at all
            self.damaged = True

    def _decode(self, body: bytes) -> Iterator[Record]:
        try:
            yield from _FRAME.decode(body)
            return
        except msgspec.DecodeError:
            pass
        try:
            raws = _RAW.decode(body)
        except msgspec.DecodeError:
            self.unknown += 1
            return
        for raw in raws:
            try:
                yield _ONE.decode(raw)
            except msgspec.ValidationError:
                self.unknown += 1


class RunReader:
    """All spools of one run directory. Each `poll` gives what was written since the last one.

    With `newest_only` the segments that are finished when it is made are left out.
    """

    def __init__(self, run_dir: Path, *, newest_only: bool = False) -> None:
        self.run_dir = run_dir
        self.processes: dict[tuple[str, str, int, str], Process] = {}  # by host, boot, pid, role
        self.segments: dict[Path, SegmentReader] = {}
        self._unread: dict[str, list[SegmentReader]] = defaultdict(list)  # of each spool, what is not known to be at its end
        self.finished: list[Path] = []  # read to their end, and later ones exist: nobody writes to them any more
        self._left_out = {path for paths in spool.segments(run_dir).values() for path in paths[:-1]} if newest_only else set()
        self.behind = False  # the last poll stopped at its limit
        self._anchors: dict[str, Anchor] = {}  # by boot
        # Spools that were copied away from their page carry anchors of their own.
        with suppress(FileNotFoundError, ValueError), closing(ControlPage.open(run_dir)) as page:
            self._anchors[page.anchor.boot_id] = page.anchor

    def poll(self, limit: int | None = None) -> Iterator[tuple[Process, Record]]:
        """New records, at most about `limit` bytes of them; within a spool in the order they were written.

        The spool that is furthest behind in time is read next, so that what belongs together comes at about the same time.
        """
        for stem, paths in spool.segments(self.run_dir).items():
            for path in paths:
                if path not in self.segments and path not in self._left_out:
                    self.segments[path] = SegmentReader(path)
                    self._unread[stem].append(self.segments[path])
        spools, total = list(self._unread.values()), 0
        while spools and (limit is None or total < limit):
            unread = min(spools, key=lambda unread: unread[0].t)
            segment = unread[0]
            records, size = segment.read()
            total += size
            if segment.header is not None:
                process = self._process(segment.header)
                for record in records:
                    if type(record) is Bye:
                        process.threads[segment.header.thread] = True
                    yield process, record
            if not size and len(unread) > 1:
                self.finished.append(unread.pop(0).path)
            elif not size:
                spools.remove(unread)
        self.behind = bool(spools)

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
            place = header.role, header.pid, header.host, header.boot_id
            self.processes[key] = Process(*place, header.parent_pid, anchor.offset)
        self.processes[key].threads.setdefault(header.thread, False)
        return self.processes[key]
