"""Who wrote a spool.

Process: readers. Knows: pids, roles, clocks. Does not know: records.
Mirrors: nothing in vLLM.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True, eq=False)
class Process:
    """One place of the run. A worker inside the engine core's process is a place of its own with the same pid."""

    role: str  # frontend | engine-core | worker
    pid: int
    host: str
    boot_id: str
    parent_pid: int = 0  # of the process that started it
    offset: int = 0  # wall minus monotonic clock, ns; one for all processes of a boot
    threads: dict[str, bool] = field(default_factory=dict)  # thread -> its spool ended with a farewell
    t_last: int = 0  # the newest time seen in its records
    alive: bool = False  # it still ran when its spools were read
    failed: bool = False  # it said itself that an error was its end
    resource: Mapping[str, Any] | None = None  # its attributes, where spans were read from a file that says them

    def wall(self, t: int) -> int:
        """Monotonic `t` of this process as nanoseconds since 1970."""
        return t + self.offset

    @property
    def ended(self) -> bool:
        """It stopped in order: every thread said farewell."""
        return bool(self.threads) and all(self.threads.values())

    @property
    def died(self) -> bool:
        """It stopped without a farewell, or by an error."""
        return self.failed or (not self.ended and not self.alive)


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
