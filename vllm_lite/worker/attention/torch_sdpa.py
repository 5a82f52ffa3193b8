"""Paged attention in plain torch, on any device: the reference that every other backend must agree with.

Process: worker. Knows: one step's metadata; caches as [Hkv, slots, D], heads first, so that a gather is ready for a batched
matrix product. Does not know: the model. Decodes are gathered side by side, with the query heads of each KV head as rows (keys
and values are never repeated), and stay so while no other request comes or goes; each chunk of a prompt is computed on its own.
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
from vllm_lite.worker.attention.decode_run import CACHE_SHARE, ROOM, DecodeGroup, DecodeRun, Recent
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
class Chunk:
    """n tokens of one sequence: flat rows `start` to `end`. `slots` [L], None where its keys and values are all in this step;
    `mask` [n, L] is 0 or -inf, None where plain causal order is all there is to it."""

    start: int
    end: int
    slots: torch.Tensor | None
    mask: torch.Tensor | None


class LayerKind(NamedTuple):
    """Layers of one kind share a plan. `plain`: no softcap and no sinks, so torch's own kernel can do it."""

    window: int | None
    plain: bool


class Plan(NamedTuple):
    """A step's work in layers of one kind. `run`: the run that its groups are kept for, None where they are not."""

    groups: list[DecodeGroup]
    chunks: list[Chunk]
    run: DecodeRun | None


class TorchSdpaBackend(AttentionBackend):
    """Gather, then scaled dot product attention."""

    name = "torch_sdpa"

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._plans: dict[LayerKind, Plan] = {}
        self._run: DecodeRun | None = None

    def allocate(self, spec: FullAttentionSpec, num_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Two zeroed tensors, [Hkv, num_blocks * block_size, D] and [..., Dv]."""
        self._run = None
        slots = num_blocks * spec.block_size
        return self._zeros(spec.num_kv_heads, slots, spec.head_size), self._zeros(spec.num_kv_heads, slots, spec.head_size_v)

    def begin_step(self, metadata: AttentionMetadata) -> None:
        """Upload the slots to write; groups and masks wait for the first layer of each kind and may serve a whole run."""
        self._metadata = metadata
        self._slot_mapping = self._upload(metadata.slot_mapping)
        if self._run is None or not self._run.goes_on(metadata):
            self._run = DecodeRun(metadata) if metadata.num_decodes == metadata.num_reqs else None
        self._plans = {kind: plan for kind, plan in self._plans.items() if plan.run is not None and plan.run is self._run}

    def attend(self, layer: PagedLayer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See AttentionBackend.attend."""
        kind = LayerKind(layer.sliding_window, layer.plain)
        groups, chunks, run = self._plans.get(kind) or self._plan(kind, layer.key_cache.shape[1])
        recent: Recent | None = layer.recent
        if recent is not None and recent.run is run:
            recent.append(key, value)
        else:
            if recent is not None:
                recent.write_back()
            layer.key_cache.index_copy_(1, self._slot_mapping, key)
            layer.value_cache.index_copy_(1, self._slot_mapping, value)
            recent = layer.recent = None if run is None else Recent(run, groups, layer.key_cache, layer.value_cache)
        if len(groups) == 1 and not chunks:
            return _decode(layer, groups[0], query, recent, 0)
        out = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
        for number, group in enumerate(groups):
            rows = slice(group.count) if group.rows is None else group.rows
            out[rows] = _decode(layer, group, query[:, rows], recent, number)
        for chunk in chunks:
            own = slice(chunk.start, chunk.end)
            out[own] = _prefill(layer, chunk, query[:, own], key[:, own], value[:, own])
        return out

    def _plan(self, kind: LayerKind, num_slots: int) -> Plan:
        meta, run = self._metadata, self._run
        lengths = meta.seq_lens[: meta.num_decodes]
        lengths = lengths if kind.window is None else np.minimum(lengths, kind.window)
        members = group_by_length(lengths)
        slots = sum(len(rows) * (int(lengths[rows].max()) + ROOM) for rows in members)
        slides = kind.window is not None and bool((lengths > kind.window - ROOM).any())
        if slots > num_slots // CACHE_SHARE or slides or (run is not None and run.age):
            run = None  # too large for copies, or so in the run's first step
        groups = [self._decode_group(rows, int(lengths[rows].max()), kind, run) for rows in members]
        chunks = [self._chunk(request, kind) for request in range(meta.num_decodes, meta.num_reqs)]
        plan = self._plans[kind] = Plan(groups, chunks, run)
        return plan

    def _decode_group(self, rows: npt.NDArray[np.int64], longest: int, kind: LayerKind, run: DecodeRun | None) -> DecodeGroup:
        few = kind.plain and (len(rows) <= FEW_DECODES or len(rows) * longest <= FEW_SLOTS)
        multiple = 1 if few or self._dtype.itemsize > 2 else LENGTH_STEP
        width = longest + multiple - 1  # one step's length may be rounded up by so many
        slots, valid = self._metadata.padded_slots(rows, width, kind.window)
        if run is not None:
            valid = np.pad(valid, ((0, 0), (0, ROOM)), constant_values=True)
        return DecodeGroup(
            None if len(rows) == self._metadata.num_decodes else self._upload(rows),
            self._upload(slots.reshape(-1)),
            len(rows),
            width,
            longest,
            multiple,
            None if valid.all() else self._mask(valid)[None, :, None],
            few,
        )

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


def _decode(layer: PagedLayer, group: DecodeGroup, query: torch.Tensor, recent: Recent | None, number: int) -> torch.Tensor:
    """One token for each of B sequences, group `number` of the step: query [H, B, D], returns [B, H, Dv]."""
    heads, count, width = query.shape
    kv_heads = layer.key_cache.shape[0]
    columns = group.columns(0 if recent is None else recent.run.age)
    mask = None if group.mask is None else group.mask[..., columns]

    def read(which: int) -> torch.Tensor:
        cache = (layer.key_cache, layer.value_cache)[which]
        return (group.gather(cache) if recent is None else recent.copies[number][which])[:, :, columns]

    packed = query.view(kv_heads, -1, count, width).transpose(1, 2)
    keys = read(0)
    if group.few:
        out = scaled_dot_product_attention(packed, keys, read(1), attn_mask=mask, scale=layer.scaling)
    else:
        sinks = None
        if layer.sinks is not None:
            sinks = layer.sinks.view(kv_heads, 1, -1, 1).expand(-1, count, -1, -1)
        weights = _weights(layer, packed, keys, mask=mask, sinks=sinks)
        out = torch.matmul(weights, read(1))  # not sooner: keys would have to leave the CPU's cache for them
    return out.transpose(0, 1).reshape(count, heads, -1)


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
    return torch.matmul(_weights(layer, query, key, mask=chunk.mask, sinks=sinks), value).transpose(0, 1)


def _weights(
    layer: PagedLayer, query: torch.Tensor, keys: torch.Tensor, *, mask: torch.Tensor | None, sinks: torch.Tensor | None
) -> torch.Tensor:
    """How much of each value to take, [..., R, L]: query [..., R, D], keys [..., L, D]; `mask` broadcasts to the result;
    `sinks` [..., R, 1] is a column that takes its share of the softmax and gives nothing back."""
    scores = torch.matmul(query, keys.transpose(-1, -2)).mul_(layer.scaling)
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
