"""Paged attention in plain torch, on any device: the reference that every other backend must agree with.

Process: worker. Knows: one step's metadata; caches as [Hkv, slots, D], heads first, so that a gather is ready for a batched
matrix product. Does not know: the model. Decodes are gathered side by side, with the query heads of each KV head as rows (keys
and values are never repeated); each chunk of a prompt is computed on its own.
Mirrors: vllm/v1/attention/backends/cpu_attn.py
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import scaled_dot_product_attention

from vllm_lite.wire.kv_cache_interface import FullAttentionSpec
from vllm_lite.worker.attention.interface import AttentionBackend, PagedLayer
from vllm_lite.worker.attention.metadata import AttentionMetadata
from vllm_lite.worker.step_buffer import upload

# Slots gathered at once: small enough for the copy to stay in the CPU's cache until it is read.
GROUP_SLOTS = 8192
# oneDNN builds a kernel for each new shape it meets, so in its dtypes decodes' lengths grow in steps of this many slots.
LENGTH_STEP = 16
# Up to so many slots, or decodes, torch's own kernel is faster than two matrix products and a softmax; beyond, slower.
FEW_SLOTS, FEW_DECODES = 4096, 4


@dataclass(slots=True, eq=False)
class DecodeGroup:
    """B sequences of like length L, one new token each. `rows` [B] are rows of the flat batch, None for all decodes in order;
    `slots` [B * L]; `mask` [Hkv * B, 1, L] is 0 or -inf, None where all are L long. `few`: best left to torch's own kernel."""

    rows: torch.Tensor | None
    slots: torch.Tensor
    count: int
    length: int
    mask: torch.Tensor | None
    few: bool


@dataclass(slots=True, eq=False)
class Chunk:
    """n tokens of one sequence: flat rows `start` to `end`. `slots` [L], None where its keys and values are all in this step;
    `mask` [n, L] is 0 or -inf, None where plain causal order is all there is to it."""

    start: int
    end: int
    slots: torch.Tensor | None
    mask: torch.Tensor | None


class LayerKind(NamedTuple):
    """Layers of one kind share groups and masks. `plain`: no softcap and no sinks, so torch's own kernel can do it."""

    window: int | None
    kv_heads: int
    plain: bool


class TorchSdpaBackend(AttentionBackend):
    """Gather, then scaled dot product attention."""

    name = "torch_sdpa"

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._plans: dict[LayerKind, tuple[list[DecodeGroup], list[Chunk]]] = {}

    def allocate(self, spec: FullAttentionSpec, num_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Two zeroed tensors, [Hkv, num_blocks * block_size, D] and [..., Dv]."""
        slots = num_blocks * spec.block_size
        return self._zeros(spec.num_kv_heads, slots, spec.head_size), self._zeros(spec.num_kv_heads, slots, spec.head_size_v)

    def begin_step(self, metadata: AttentionMetadata) -> None:
        """Upload the slots to write; groups and masks wait for the first layer of each kind."""
        self._metadata = metadata
        self._slot_mapping = self._upload(metadata.slot_mapping)
        self._plans.clear()

    def attend(self, layer: PagedLayer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See AttentionBackend.attend."""
        layer.key_cache.index_copy_(1, self._slot_mapping, key)
        layer.value_cache.index_copy_(1, self._slot_mapping, value)
        kind = LayerKind(layer.sliding_window, key.shape[0], layer.plain)
        if kind not in self._plans:
            self._plans[kind] = self._plan(kind)
        groups, chunks = self._plans[kind]
        if len(groups) == 1 and not chunks:
            return _decode(layer, groups[0], query)
        out = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
        for group in groups:
            rows = slice(group.count) if group.rows is None else group.rows
            out[rows] = _decode(layer, group, query[:, rows])
        for chunk in chunks:
            own = slice(chunk.start, chunk.end)
            out[own] = _prefill(layer, chunk, query[:, own], key[:, own], value[:, own])
        return out

    def _plan(self, kind: LayerKind) -> tuple[list[DecodeGroup], list[Chunk]]:
        meta = self._metadata
        lengths = meta.seq_lens[: meta.num_decodes]
        lengths = lengths if kind.window is None else np.minimum(lengths, kind.window)
        groups = [self._decode_group(rows, int(lengths[rows].max()), kind) for rows in group_by_length(lengths)]
        return groups, [self._chunk(request, kind) for request in range(meta.num_decodes, meta.num_reqs)]

    def _decode_group(self, rows: npt.NDArray[np.int64], longest: int, kind: LayerKind) -> DecodeGroup:
        few = kind.plain and (len(rows) <= FEW_DECODES or len(rows) * longest <= FEW_SLOTS)
        slots, valid = self._metadata.padded_slots(rows, kind.window, 1 if few or self._dtype.itemsize > 2 else LENGTH_STEP)
        mask = None if valid.all() else self._mask(valid)[:, None].repeat(kind.kv_heads, 1, 1)
        every_decode = len(rows) == self._metadata.num_decodes
        flat = self._upload(slots.reshape(-1))
        return DecodeGroup(None if every_decode else self._upload(rows), flat, len(rows), slots.shape[1], mask, few)

    def _chunk(self, request: int, kind: LayerKind) -> Chunk:
        meta = self._metadata
        start, end = int(meta.query_start_loc[request]), int(meta.query_start_loc[request + 1])
        count, length, window = end - start, int(meta.seq_lens[request]), kind.window
        fresh = count == length
        if fresh and kind.plain and (window is None or length <= window):
            return Chunk(start, end, None, None)
        first = 0 if fresh or window is None else max(0, length - count - window + 1)
        queries, keys = np.arange(length - count, length)[:, None], np.arange(first, length)
        visible = keys <= queries
        if window is not None:
            visible &= keys > queries - window
        return Chunk(start, end, None if fresh else self._upload(meta.slots(request, first)), self._mask(visible))

    def _mask(self, visible: npt.NDArray[np.bool_]) -> torch.Tensor:
        hidden = self._upload(~visible)
        return torch.zeros(visible.shape, dtype=self._dtype, device=self._device).masked_fill_(hidden, -torch.inf)

    def _upload(self, array: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> torch.Tensor:
        return upload(array, self._device)

    def _zeros(self, *shape: int) -> torch.Tensor:
        if self._device.type != "cpu":
            return torch.zeros(shape, dtype=self._dtype, device=self._device)
        # Zero pages straight from the operating system, small ones: memory is used only where blocks are, and the first write
        # into a region does not wait for megabytes to be cleared.
        memory = mmap.mmap(-1, math.prod(shape) * self._dtype.itemsize)
        return torch.frombuffer(memory, dtype=self._dtype).view(shape)


def _decode(layer: PagedLayer, group: DecodeGroup, query: torch.Tensor) -> torch.Tensor:
    """One token for each of B sequences: query [H, B, D], returns [B, H, Dv]."""
    heads, count, width = query.shape
    kv_heads = layer.key_cache.shape[0]

    def gather(cache: torch.Tensor) -> torch.Tensor:
        return cache.index_select(1, group.slots).view(kv_heads * count, group.length, -1)

    packed = query.reshape(kv_heads, -1, count, width).transpose(1, 2).reshape(kv_heads * count, -1, width)
    keys = gather(layer.key_cache)
    if group.few:
        values, mask = gather(layer.value_cache), None if group.mask is None else group.mask[None]
        out = scaled_dot_product_attention(packed[None], keys[None], values[None], attn_mask=mask, scale=layer.scaling)[0]
    else:
        sinks = None
        if layer.sinks is not None:
            sinks = layer.sinks.view(kv_heads, 1, -1, 1).expand(-1, count, -1, -1).reshape(kv_heads * count, -1, 1)
        weights = _weights(layer, packed, keys, mask=group.mask, sinks=sinks)
        out = torch.bmm(weights, gather(layer.value_cache))  # not sooner: keys would have to leave the CPU's cache for them
    return out.view(kv_heads, count, -1, out.shape[2]).transpose(0, 1).reshape(count, heads, -1)


def _prefill(layer: PagedLayer, chunk: Chunk, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """n tokens of one sequence: query [H, n, D], returns [n, H, Dv]."""
    if chunk.slots is not None:
        key, value = layer.key_cache.index_select(1, chunk.slots), layer.value_cache.index_select(1, chunk.slots)
    if layer.plain:
        out = scaled_dot_product_attention(
            query[None],
            key[None],
            value[None],
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            scale=layer.scaling,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1)
    repeats = query.shape[0] // key.shape[0]
    key, value = key.repeat_interleave(repeats, 0), value.repeat_interleave(repeats, 0)
    sinks = None if layer.sinks is None else layer.sinks.view(-1, 1, 1).expand(-1, query.shape[1], -1)
    return torch.bmm(_weights(layer, query, key, mask=chunk.mask, sinks=sinks), value).transpose(0, 1)


def _weights(
    layer: PagedLayer, query: torch.Tensor, keys: torch.Tensor, *, mask: torch.Tensor | None, sinks: torch.Tensor | None
) -> torch.Tensor:
    """How much of each value to take, [N, R, L]: query [N, R, D], keys [N, L, D]; `mask` broadcasts to the result;
    `sinks` [N, R, 1] is a column that takes its share of the softmax and gives nothing back."""
    scores = torch.bmm(query, keys.transpose(1, 2)).mul_(layer.scaling)
    if layer.softcap is not None:
        scores.div_(layer.softcap).tanh_().mul_(layer.softcap)
    if mask is not None:
        scores.add_(mask)
    if sinks is None:
        return scores.softmax(-1)
    return torch.cat([scores, sinks.to(scores.dtype)], dim=-1).softmax(-1)[..., :-1]


def group_by_length(lengths: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Split sequences so that padding at most doubles the work and a group's slots stay within GROUP_SLOTS.

    Returns ascending row numbers, each row in exactly one group. Lengths up to 64 always share one.
    """
    order = np.argsort(lengths, kind="stable")
    ascending = lengths[order]
    groups: list[npt.NDArray[np.int64]] = []
    end = len(order)
    while end > 0:
        longest = int(ascending[end - 1])
        alike = int(np.searchsorted(ascending, (longest + 1) // 2)) if longest > 64 else 0
        start = max(alike, end - max(1, GROUP_SLOTS // longest))
        groups.append(np.sort(order[start:end]))
        end = start
    return groups
