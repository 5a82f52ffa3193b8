"""One rule's verdict.

Process: readers. Knows: counts and sentences. Does not know: the rules, each of which yields what it was applied to.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

Held = tuple[bool, str]  # a rule applied to one thing: whether it holds, and the sentence for where it does not


class Finding(NamedTuple):
    """A rule, how many things it was applied to, and a sentence for each that broke it."""

    rule: str
    checked: int
    failures: list[str]

    @property
    def ok(self) -> bool:
        """Nothing broke the rule."""
        return not self.failures


def judge(rule: str, applications: Iterable[Held]) -> Finding:
    """Apply it to everything."""
    checked, failures = 0, []
    for holds, sentence in applications:
        checked += 1
        if not holds:
            failures.append(sentence)
    return Finding(rule, checked, failures)


def equal(subject: str, **values: object) -> Held:
    """All `values` should be the same; the sentence names each with what it is."""
    told = ", ".join(f"{name}={value}" for name, value in values.items())
    first, *others = values.values()
    return all(value == first for value in others), f"{subject}: {told}"
