"""One mapped page in the run directory that every process of a run reads: the trace level, how many requests are left, and the
clock anchor that all of the run's times are told by.

Process: all; written by whoever builds the engine and by `vllm-lite trace attach`. Knows: bytes at fixed places. Does not
know: recorders. Reading it costs no system call, so each process looks once per step or bag.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.clock import Anchor, clock_anchor
from vllm_lite.tracing.process import is_alive

CONTROL_FILE = "control"
_MAGIC = b"VLTC\x01"
_SIZE = 128
_LEVEL = 8
_LIFE = 9
_OWN_LEVEL = 10  # the owner's; _LEVEL is the highest of it and of those leased
_COUNT = 16  # int64: requests still to be traced; negative means no limit
_PID = 24  # int64: the front end that owns the run
_ANCHOR = 32  # two int64: wall and monotonic clock
_BOOT = slice(48, 96)  # ASCII, filled up with zeros
_LEASES = range(96, 128, 8)
_LEASE = struct.Struct("<iB?2x")  # the process that raised the level (0: none), to what, and whether it limits the count, too


class ControlPage:
    """The mapped page. `level` 0 to 3; `count` requests left to trace, negative without limit."""

    def __init__(self, page: mmap.mmap) -> None:
        self._page = page

    @classmethod
    def create(cls, run_dir: Path, level: int, count: int = -1, pid: int = 0, anchor: Anchor | None = None) -> ControlPage:
        """Write a new page, by default with this moment's anchor; raises FileExistsError where there already is one."""
        wall_ns, mono_ns, boot_id = anchor or clock_anchor()
        body = bytearray(_SIZE)
        body[: len(_MAGIC)] = _MAGIC
        body[_LEVEL] = body[_OWN_LEVEL] = level
        struct.pack_into("<q", body, _COUNT, count)
        struct.pack_into("<q", body, _PID, pid)
        struct.pack_into("<qq", body, _ANCHOR, wall_ns, mono_ns)
        body[_BOOT] = boot_id.encode("ascii")[:48].ljust(48, b"\0")
        with (run_dir / CONTROL_FILE).open("xb") as file:
            file.write(body)
        return cls.open(run_dir)

    @classmethod
    def open(cls, run_dir: Path) -> ControlPage:
        """Map the page of a run; raises ValueError where the file is not one."""
        with (run_dir / CONTROL_FILE).open("r+b") as file:
            page = mmap.mmap(file.fileno(), _SIZE)
        if page[: len(_MAGIC)] != _MAGIC:
            raise ValueError(f"{run_dir / CONTROL_FILE} is not a vllm-lite control page of this version")
        return cls(page)

    @property
    def level(self) -> int:
        """The level now in force. A used up count does not lower it: requests that were admitted are traced to their end."""
        return self._page[_LEVEL]

    @level.setter
    def level(self, value: int) -> None:
        self._page[_OWN_LEVEL] = value
        self._settle()

    def lease(self, level: int, count: int | None = None) -> int:
        """Raise the level to `level` at least, perhaps for `count` more requests, until `release` of what this returns, or
        until this process is gone and a request comes. Raises VLLMValidationError where there is no place for one more."""
        self._settle()
        place = next((place for place in _LEASES if not self._page[place : place + 4].strip(b"\0")), None)
        if place is None:
            told = f"{len(_LEASES)} others have raised the trace level of this run; end one of them"
            raise VLLMValidationError(told, parameter="run", value=level)
        _LEASE.pack_into(self._page, place, os.getpid(), level, count is not None)
        if count is not None:
            self.count = count
        self._settle()
        return place

    def release(self, place: int) -> None:
        """End a lease: the level is as if it had never been."""
        if _LEASE.unpack_from(self._page, place)[2]:
            self.count = -1
        _LEASE.pack_into(self._page, place, 0, 0, False)
        self._settle()

    def _settle(self) -> None:
        """Forget who is gone; then the highest level is in force."""
        highest = self._page[_OWN_LEVEL]
        for place in _LEASES:
            pid, level, _ = _LEASE.unpack_from(self._page, place)
            if pid and not is_alive(pid):
                self.release(place)
                return
            highest = max(highest, level)
        self._page[_LEVEL] = highest

    @property
    def life(self) -> bool:
        """Whether the engine's own life is sampled: start-up, and what comes of no request. The front end decides."""
        return bool(self._page[_LIFE])

    @life.setter
    def life(self, value: bool) -> None:
        self._page[_LIFE] = value

    @property
    def count(self) -> int:
        """Requests still to be traced."""
        return int(struct.unpack_from("<q", self._page, _COUNT)[0])

    @count.setter
    def count(self, value: int) -> None:
        struct.pack_into("<q", self._page, _COUNT, value)

    @property
    def pid(self) -> int:
        """The process that owns the run."""
        return int(struct.unpack_from("<q", self._page, _PID)[0])

    @property
    def anchor(self) -> Anchor:
        """What ties the monotonic clock of the owner's boot to the wall."""
        wall_ns, mono_ns = struct.unpack_from("<qq", self._page, _ANCHOR)
        return Anchor(wall_ns, mono_ns, self._page[_BOOT].rstrip(b"\0").decode("ascii"))

    def admit(self) -> bool:
        """Take one from the count; False once it is used up. Several front ends may race by one: it is a limit, no account."""
        if self._page[_LEVEL] > self._page[_OWN_LEVEL]:
            self._settle()
        count = self.count
        if count > 0:
            self.count = count - 1
        return count != 0

    def close(self) -> None:
        """Unmap."""
        self._page.close()
