"""Numbers as the screen shows them: times with fixed decimals so that columns line up, sizes, counts with their noun.

Process: whichever prints. Knows: nanoseconds and bytes. Does not know: what was measured.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000
KIB = 1024


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
