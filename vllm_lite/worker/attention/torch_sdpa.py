"""Paged attention in plain torch, on any device: the reference that every other backend must agree with.

Process: worker. Knows: one step's metadata; caches as [Hkv, slots, D], heads first, so that a gather is ready for a batched
matrix product. Does not know: the model. Each sequence is computed on its own; on a CPU, decodes are left to a kernel.
Mirrors: vllm/v1/attention/backends/cpu_attn.py
"""

import math
import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from vllm_lite.wire.kv_cache_interface import FullAttentionSpec
from vllm_lite.worker.attention.interface import AttentionBackend, PagedLayer
from vllm_lite.worker.attention.metadata import AttentionMetadata
from vllm_lite.worker.step_buffer import upload


@dataclass(slots=True, eq=False)
class Chunk:
    """n tokens of one sequence: flat rows `start` to `end`. `slots` [L], None where its keys and values are all in this step;
    `mask` [n, L] is 0 or -inf, None where plain causal order is all there is to it."""

    start: int
    end: int
    slots: torch.Tensor | None
    mask: torch.Tensor | None


class TorchSdpaBackend(AttentionBackend):
    """Gather, then scaled dot product attention."""

    name = "torch_sdpa"

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._chunks: dict[tuple[int | None, bool], list[Chunk]] = {}  # of each kind of layer
        self._kernel = None
        compiles = os.environ.get("NUMBA_DISABLE_JIT", "") in ("", "0")
        if device.type == "cpu" and dtype in (torch.bfloat16, torch.float32) and compiles:
            from vllm_lite.worker.attention.cpu_decode import CpuDecode  # compiles: only where it runs

            self._kernel = CpuDecode(dtype)

    def allocate(self, spec: FullAttentionSpec, num_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Two zeroed tensors, [Hkv, num_blocks * block_size, D] and [..., Dv]."""
        if spec.head_size % 2 or spec.head_size_v % 2:
            self._kernel = None  # it takes numbers in pairs
        slots = num_blocks * spec.block_size
        return self._zeros(spec.num_kv_heads, slots, spec.head_size), self._zeros(spec.num_kv_heads, slots, spec.head_size_v)

    def begin_step(self, metadata: AttentionMetadata) -> None:
        """Take note of the slots to write; chunks and masks wait for the first layer of each kind."""
        self._metadata = metadata
        self._chunks.clear()
        if self._kernel is None:
            self._slot_mapping = upload(metadata.slot_mapping, self._device)
        else:
            self._kernel.begin_step(metadata)

    def attend(self, layer: PagedLayer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See AttentionBackend.attend."""
        out = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
        if self._kernel is None:
            layer.key_cache.index_copy_(1, self._slot_mapping, key)
            layer.value_cache.index_copy_(1, self._slot_mapping, value)
        else:
            self._kernel(layer, out, query, key, value)
        kind = (layer.sliding_window, layer.plain)
        if kind not in self._chunks:
            first = 0 if self._kernel is None else self._metadata.num_decodes
            self._chunks[kind] = [self._chunk(request, *kind) for request in range(first, self._metadata.num_reqs)]
        for chunk in self._chunks[kind]:
            own = slice(chunk.start, chunk.end)
            out[own] = _prefill(layer, chunk, query[:, own], key[:, own], value[:, own])
        return out

    def _chunk(self, request: int, window: int | None, plain: bool) -> Chunk:
        meta = self._metadata
        start, end = int(meta.query_start_loc[request]), int(meta.query_start_loc[request + 1])
        count, length = end - start, int(meta.seq_lens[request])
        fresh = count == length
        if fresh and plain and (window is None or length <= window):
            return Chunk(start, end, None, None)
        first = 0 if fresh or window is None else max(0, length - count - window + 1)
        queries, keys = np.arange(length - count, length)[:, None], np.arange(first, length)
        visible = keys <= queries
        if window is not None:
            visible &= keys > queries - window
        mask = torch.zeros(visible.shape, dtype=self._dtype, device=self._device)
        mask.masked_fill_(upload(~visible, self._device), -torch.inf)
        return Chunk(start, end, None if fresh else upload(meta.slots(request, first), self._device), mask)

    def _zeros(self, *shape: int) -> torch.Tensor:
        if self._device.type != "cpu":
            return torch.zeros(shape, dtype=self._dtype, device=self._device)
        # Zero pages straight from the operating system, small ones: memory is used only where blocks are, and the first write
        # into a region does not wait for megabytes to be cleared.
        memory = mmap.mmap(-1, math.prod(shape) * self._dtype.itemsize)
        return torch.frombuffer(memory, dtype=self._dtype).view(shape)


def _prefill(layer: PagedLayer, chunk: Chunk, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """n tokens of one sequence: query [H, n, D], returns [n, H, Dv]."""
    if chunk.slots is not None:
        key, value = layer.key_cache.index_select(1, chunk.slots), layer.value_cache.index_select(1, chunk.slots)
    if layer.plain:
        masks: dict[str, Any] = {"attn_mask": chunk.mask, "is_causal": chunk.mask is None}
        inputs = query[None], key[None], value[None]
        return scaled_dot_product_attention(*inputs, **masks, scale=layer.scaling, enable_gqa=True)[0].transpose(0, 1)
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
