"""One way to refuse a bad value, so that every refusal reads the same: field, what it held, what is accepted.

Process: all. Knows: Python's number types. Does not know: which class asks.
Mirrors: nothing; vLLM spreads these checks over its classes.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from vllm_lite.exceptions import VLLMValidationError


def refuse(field: str, value: object, accepted: str) -> VLLMValidationError:
    """The error to raise for `field`; `accepted` completes the sentence "it must be ..."."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return VLLMValidationError(f"{field} must be {accepted}; got {shown}", parameter=field, value=value)


def check_int(field: str, value: object, low: int | None = None, high: int | None = None) -> None:
    """Refuse all but a true int (no bool, no float) within [low, high]."""
    bounds = _bounds(low, high)
    if type(value) is not int or (low is not None and value < low) or (high is not None and value > high):
        raise refuse(field, value, f"an integer{bounds}")


def check_number(
    field: str, value: object, low: float | None = None, high: float | None = None, *, above_low: bool = False
) -> None:
    """Refuse all but a finite int or float within [low, high], or (low, high] with `above_low`."""
    accepted = f"a finite number{_bounds(low, high, above_low=above_low)}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise refuse(field, value, accepted)
    if (low is not None and (value <= low if above_low else value < low)) or (high is not None and value > high):
        raise refuse(field, value, accepted)


def check_bool(field: str, value: object) -> None:
    """Refuse all but True and False."""
    if not isinstance(value, bool):
        raise refuse(field, value, "True or False")


def check_choice(field: str, value: object, choices: Collection[str]) -> None:
    """Refuse all but one of `choices`."""
    if value not in choices:
        raise refuse(field, value, "one of " + ", ".join(repr(c) for c in choices))


def _bounds(low: float | None, high: float | None, *, above_low: bool = False) -> str:
    parts = []
    if low is not None:
        parts.append(f"above {low}" if above_low else f">= {low}")
    if high is not None:
        parts.append(f"<= {high}")
    return " " + " and ".join(parts) if parts else ""
