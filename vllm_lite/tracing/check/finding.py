"""One rule's verdict.

Process: readers. Knows: counts and sentences. Does not know: the rules.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Finding:
    """A rule, how many things it was applied to, and a sentence for each that broke it."""

    rule: str
    checked: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing broke the rule."""
        return not self.failures

    def expect(self, holds: bool, sentence: str) -> None:
        """Count one more application; note `sentence` where the rule does not hold."""
        self.checked += 1
        if not holds:
            self.failures.append(sentence)

    def equal(self, subject: str, **values: object) -> None:
        """Expect all `values` to be the same; the sentence names each with what it is."""
        listed = list(values.values())
        told = ", ".join(f"{name}={value}" for name, value in values.items())
        self.expect(all(value == listed[0] for value in listed), f"{subject}: {told}")
