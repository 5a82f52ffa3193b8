"""A list that keeps its first and its last items and counts what lay between.

Process: readers. Knows: how many to keep. Does not know: of what. A stream of an hour costs no more memory than one of a
minute, and neither its first token nor its last is ever the one that is missing.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Ends(Generic[T]):
    """Keeps all items where `keep` is None, else the first and the last `keep`. `count` is of all that were appended."""

    __slots__ = ("_head", "_keep", "_tail", "count")

    def __init__(self, keep: int | None = None) -> None:
        self._keep = keep
        self._head: list[T] = []
        self._tail: deque[T] | None = None
        self.count = 0

    def append(self, item: T) -> None:
        """Add `item` at the end; the oldest item of the last ones may go."""
        self.count += 1
        if self._keep is None or len(self._head) < self._keep:
            self._head.append(item)
            return
        if self._tail is None:
            self._tail = deque(maxlen=self._keep)
        self._tail.append(item)

    @property
    def skipped(self) -> int:
        """How many items between the first and the last ones are gone."""
        return self.count - len(self)

    def __len__(self) -> int:
        return len(self._head) + len(self._tail or ())

    def __iter__(self) -> Iterator[T]:
        yield from self._head
        yield from self._tail or ()

    @property
    def first(self) -> T | None:
        """The very first item."""
        return self._head[0] if self._head else None

    @property
    def last(self) -> T | None:
        """The very last item."""
        if self._tail:
            return self._tail[-1]
        return self._head[-1] if self._head else None
