"""Decodes that stay together step after step: their keys and values side by side, so that no step gathers them again.

Process: worker. Knows: which step goes on with the one before; groups of decodes. Does not know: how attention is computed.
New tokens are added to these copies alone, in one column for all; the cache gets them when the run of steps is over, before
anyone else can read there.
Mirrors: nothing in vLLM, whose kernels read through the block table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from vllm_lite.worker.attention.metadata import AttentionMetadata

ROOM = 64  # steps until a run begins anew
CACHE_SHARE = 4  # copies take at most one in so many of the cache's own slots


@dataclass(slots=True, eq=False)
class DecodeGroup:
    """B sequences of like length, one new token each, all ending in the same column.

    `rows` [B] are rows of the flat batch, None for all decodes in order. `slots` [B * W] and `longest` are those of the group's
    first step; lengths are read in multiples of `multiple`. `mask` [1, B, 1, >= W] is 0 or -inf, None where all are W long.
    `few`: best left to torch's own kernel.
    """

    rows: torch.Tensor | None
    slots: torch.Tensor
    count: int
    width: int
    longest: int
    multiple: int
    mask: torch.Tensor | None
    few: bool

    def gather(self, cache: torch.Tensor) -> torch.Tensor:
        """Of a cache [Hkv, slots, D] what the group's first step reads, [Hkv, B, W, D]."""
        return cache.index_select(1, self.slots).view(cache.shape[0], self.count, self.width, -1)

    def columns(self, age: int) -> slice:
        """What to read `age` steps later."""
        end, length = self.width + age, self.longest + age
        return slice(end - -(-length // self.multiple) * self.multiple, end)


class DecodeRun:
    """Consecutive steps that hold the same decodes and nothing else. `age`: steps since the first."""

    def __init__(self, metadata: AttentionMetadata) -> None:
        self._now = metadata
        self.age = 0
        self.slots: list[npt.NDArray[np.int64]] = []  # where the cache still lacks tokens, [B] for each step but the first

    def goes_on(self, metadata: AttentionMetadata) -> bool:
        """True where `metadata` is the run's next step, which then is its current one."""
        now = self._now
        if (
            self.age == ROOM
            or metadata.num_decodes < metadata.num_reqs
            or not np.array_equal(metadata.seq_lens, now.seq_lens + 1)
        ):
            return False
        columns = np.arange(now.block_table.shape[1])
        unused = columns * now.block_size >= now.seq_lens[:, None]
        if not (unused | (metadata.block_table[:, : len(columns)] == now.block_table)).all():
            return False
        self._now = metadata
        self.age += 1
        self.slots.append(metadata.slot_mapping)
        return True


class Recent:
    """One layer's keys [Hkv, B, W + ROOM, D] and values of each group of a run."""

    def __init__(
        self, run: DecodeRun, groups: Sequence[DecodeGroup], key_cache: torch.Tensor, value_cache: torch.Tensor
    ) -> None:
        self.run, self._groups, self._caches = run, groups, (key_cache, value_cache)
        self.copies = [tuple(_with_room(group.gather(cache)) for cache in self._caches) for group in groups]

    def append(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """The step's new tokens, [Hkv, B of all groups, D]."""
        for group, copies in zip(self._groups, self.copies, strict=True):
            column = group.width + self.run.age - 1
            for copy, new in zip(copies, (key, value), strict=True):
                copy.select(2, column).copy_(new if group.rows is None else new.index_select(1, group.rows))

    def write_back(self) -> None:
        """Give the cache the tokens that it lacks."""
        for group, copies in zip(self._groups, self.copies, strict=True) if self.run.slots else ():
            slots = torch.from_numpy(np.stack(self.run.slots, 1))
            rows = slots if group.rows is None else slots[group.rows.cpu()]
            flat = rows.reshape(-1).to(group.slots.device)
            for copy, cache in zip(copies, self._caches, strict=True):
                cache.index_copy_(1, flat, copy[:, :, group.width : group.width + rows.shape[1]].flatten(1, 2))


def _with_room(gathered: torch.Tensor) -> torch.Tensor:
    heads, count, width, size = gathered.shape
    copy = gathered.new_empty(heads, count, width + ROOM, size)
    copy[:, :, :width] = gathered
    return copy
