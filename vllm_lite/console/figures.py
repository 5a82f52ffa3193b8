"""Numbers as the screen shows them: times, sizes and counts in words, and time as rows of cells.

Process: whichever prints. Knows: nanoseconds and bytes. Does not know: what was measured.
Mirrors: nothing in vLLM.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000
KIB = 1024
APART = 10  # cells between two round numbers, at least
Interval = tuple[int, int]


def ms(ns: float | None) -> str:
    """Milliseconds with two decimals, without them from ten seconds on; a dash where the time is not known."""
    if ns is None:
        return "-"
    return f"{ns / MS:,.2f}" if ns < 10 * SECOND else f"{ns / MS:,.0f}"


def us(ns: float | None) -> str:
    """Whole microseconds; a dash where the time is not known."""
    return "-" if ns is None else f"{ns / US:,.0f}"


def span(ns: float) -> str:
    """A time within a sentence, in whichever unit reads best."""
    if ns < MS:
        return f"{ns / US:.0f} us"
    return f"{ns / MS:.1f} ms" if ns < SECOND else f"{ns / SECOND:.2f} s"


def size(num_bytes: float) -> str:
    """A size within a sentence."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < KIB:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= KIB
    return f"{num_bytes:.1f} GiB"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """ "1 letter", "3 letters", "12,800 letters"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


class TimeScale(NamedTuple):
    """`cells` columns that stand for the time from `start` to `end` (ns)."""

    start: int
    end: int
    cells: int

    @property
    def per_cell(self) -> float:
        """Nanoseconds in one column."""
        return max(1, self.end - self.start) / self.cells

    def cell(self, t: int) -> int:
        """The column that holds time `t`, clipped to the scale."""
        return max(0, min(self.cells - 1, int((t - self.start) / self.per_cell)))

    def coverage(self, intervals: Iterable[Interval]) -> list[float]:
        """For each column the share of its time that the intervals cover, 0 to 1. An instant counts as a little."""
        shares = [0.0] * self.cells
        per = self.per_cell
        for t0, t1 in intervals:
            if t1 < self.start or t0 > self.end:
                continue
            low, high = max(t0, self.start), min(t1, self.end)
            first, last = self.cell(low), self.cell(high)
            for i in range(first, last + 1):
                left = self.start + i * per
                shares[i] += max(0.0, min(high, left + per) - max(low, left)) / per
            shares[first] = max(shares[first], 1e-6)
        return [min(1.0, share) for share in shares]

    def strip(self, intervals: Iterable[Interval], levels: str) -> str:
        """The coverage as characters: the first of `levels` is nothing, the last is a full cell, and a trace always shows."""
        top = len(levels) - 1
        return "".join(levels[min(top, max(1, round(s * top)))] if s else levels[0] for s in self.coverage(intervals))

    def ticks(self) -> tuple[str, list[int]]:
        """A line of round numbers, the first with the unit, well apart, and the columns they stand at."""
        length = self.end - self.start
        unit, name = (US, "us") if length < 2 * MS else (MS, "ms") if length < 10 * SECOND else (SECOND, "s")
        step = _round_step(length / unit / max(1, self.cells / APART))
        line, columns, value = f"0 {name}", [0], step
        while self.start + value * unit <= self.end:
            column, label = self.cell(self.start + round(value * unit)), f"{value:.10g}"
            if column + len(label) > self.cells:
                break
            line = line.ljust(column) + label
            columns.append(column)
            value += step
        return line, columns


def split(parts: Sequence[int], cells: int) -> list[int]:
    """How many of `cells` each part of a bar gets: by size, none where it ends in the cell in which it began."""
    ends = [round(end * cells / (sum(parts) or 1)) for end in accumulate(parts, initial=0)]
    return [end - start for start, end in pairwise(ends)]


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is no less than `least`."""
    power = 10.0 ** math.ceil(math.log10(max(least, 1e-9)))
    return next(power * factor for factor in (0.2, 0.5, 1.0) if power * factor >= least or factor == 1.0)
