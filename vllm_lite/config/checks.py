"""One way to refuse a bad value, so that every refusal reads the same: field, what it held, what is accepted.

Process: all. Knows: Python's number types, and what a message can hold, which is integers of 64 bits and
text that is UTF-8. Does not know: which class asks. Where a check is `optional`, None passes.
Mirrors: nothing; vLLM spreads these checks over its classes.
"""

import math
from collections.abc import Collection, Mapping

from vllm_lite.exceptions import VLLMValidationError

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def refuse(field: str, value: object, accepted: str) -> VLLMValidationError:
    """The error to raise for `field`; `accepted` completes the sentence "it must be ..."."""
    try:
        shown = repr(value)
    except Exception:  # an integer of many thousand digits, or an object that cannot be shown
        shown = f"a value of type {type(value).__name__} that cannot be shown"
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return VLLMValidationError(f"{field} must be {accepted}; got {shown}", parameter=field, value=value)


def check_int(field: str, value: object, low: int | None = None, high: int | None = None, *, optional: bool = False) -> None:
    """Refuse all but a true int (no bool, no float) of 64 bits within [low, high]."""
    if optional and value is None:
        return
    if type(value) is not int or (low is not None and value < low) or (high is not None and value > high):
        raise refuse(field, value, f"an integer{_bounds(low, high)}")
    if not INT64_MIN <= value <= INT64_MAX:
        raise refuse(field, value, f"an integer{_bounds(low, high)} that fits in 64 bits")


def check_token_ids(field: str, ids: Collection[int], vocab_size: int) -> None:
    """Refuse ids beyond the vocabulary, which would reach into another request's row."""
    for bound in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= bound < vocab_size:
            raise refuse(field, bound, f"made of token ids in the vocabulary, 0 to {vocab_size - 1}")


def check_number(
    field: str, value: object, low: float | None = None, high: float | None = None, *, above_low: bool = False
) -> None:
    """Refuse all but a finite int (of 64 bits) or float within [low, high], or (low, high] with `above_low`."""
    accepted = f"a finite number{_bounds(low, high, above_low=above_low)}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refuse(field, value, f"{accepted} (an int or a float)")
    if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        raise refuse(field, value, f"{accepted} that fits in 64 bits")
    too_low = low is not None and (value <= low if above_low else value < low)
    if not math.isfinite(value) or too_low or (high is not None and value > high):
        raise refuse(field, value, accepted)


def check_text(field: str, value: object, accepted: str = "a string", *, optional: bool = False) -> str:
    """Refuse all but a string that UTF-8 can hold, so one without lone surrogates; returns it ("" for None)."""
    if optional and value is None:
        return ""
    if not isinstance(value, str):
        raise refuse(field, value, accepted)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise refuse(field, value, f"{accepted} without lone surrogates (which UTF-8 cannot hold)") from None
    return value


def check_path(field: str, value: object, *, optional: bool = False) -> None:
    """Refuse all but a string that can name a file."""
    if "\0" in check_text(field, value, "a path as a string", optional=optional) or value == "":
        raise refuse(field, value, "a path without null characters, not empty")


def check_mapping(field: str, value: object) -> None:
    """Refuse all but a mapping whose keys are strings."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise refuse(field, value, "a mapping whose keys are strings")


def check_bool(field: str, value: object, *, optional: bool = False) -> None:
    """Refuse all but True and False."""
    if not isinstance(value, bool) and not (optional and value is None):
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
