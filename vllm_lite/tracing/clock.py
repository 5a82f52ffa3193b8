"""Which clock a run counts with, and what ties it to the wall.

Process: all. Knows: clocks. Does not know: who records. Hot paths read only the monotonic clock, which all processes of one
boot share; one anchor for each boot turns it into dates, so that spans of different processes nest exactly.
Mirrors: nothing in vLLM.
"""

import time
from pathlib import Path
from typing import NamedTuple

now_ns = time.monotonic_ns


class Anchor(NamedTuple):
    """The two clocks read together, in ns, and the boot that the monotonic one counts from."""

    wall_ns: int
    mono_ns: int
    boot_id: str

    @property
    def offset(self) -> int:
        """What to add to a monotonic time of this boot to get nanoseconds since 1970."""
        return self.wall_ns - self.mono_ns


def clock_anchor() -> Anchor:
    """Both clocks, read as close together as a few tries allow (about 100 ns)."""
    best = (1 << 62, 0, 0)
    for _ in range(50):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        best = min(best, (after - before, wall, (before + after) // 2))
    return Anchor(best[1], best[2], boot_id())


def boot_id() -> str:
    """Which boot this is; "" where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
