"""One mapped page in the run directory that every process of a run reads: the trace level, how many requests are left, and the
clock anchor that all of the run's times are told by.

Process: all; written by whoever builds the engine and by `vllm-lite trace attach`. Knows: bytes at fixed places. Does not
know: recorders. Reading it costs no system call, so each process looks once per step or bag.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from vllm_lite.tracing.clock import Anchor, clock_anchor

CONTROL_FILE = "control"
_MAGIC = b"VLTC\x01"
_SIZE = 128
_LEVEL = 8
_LIFE = 9
_COUNT = 16  # int64: requests still to be traced; negative means no limit
_PID = 24  # int64: the front end that owns the run
_ANCHOR = 32  # two int64: wall and monotonic clock
_BOOT = slice(48, 96)  # ASCII, filled up with zeros


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
        body[_LEVEL] = level
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
        self._page[_LEVEL] = value

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
        count = self.count
        if count > 0:
            self.count = count - 1
        return count != 0

    def close(self) -> None:
        """Unmap."""
        self._page.close()
