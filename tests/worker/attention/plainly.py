"""Attention written out token by token, and any batch compared with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from vllm_lite.wire.kv_cache_interface import FullAttentionSpec
from vllm_lite.worker.attention.interface import PagedLayer
from vllm_lite.worker.attention.metadata import AttentionMetadata
from vllm_lite.worker.attention.torch_sdpa import TorchSdpaBackend


def plainly(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, layer: PagedLayer) -> torch.Tensor:
    """Attention of the last tokens of one sequence: query [n, H, D], keys [L, Hkv, D], values [L, Hkv, Dv]."""
    out = query.new_zeros(*query.shape[:2], values.shape[2])
    group = query.shape[1] // keys.shape[1]
    for i in range(len(query)):
        end = len(keys) - len(query) + i + 1
        start = 0 if layer.sliding_window is None else max(0, end - layer.sliding_window)
        for head in range(query.shape[1]):
            scores = keys[start:end, head // group] @ query[i, head] * layer.scaling
            if layer.softcap is not None:
                scores = layer.softcap * torch.tanh(scores / layer.softcap)
            weights = scores.exp()
            total = weights.sum() + (0 if layer.sinks is None else layer.sinks[head].exp())
            out[i, head] = weights @ values[start:end, head // group] / total
    return out


def run(lengths: list[tuple[int, int]], kind: dict[str, Any], seed: int = 0) -> None:
    """Sequences given as (tokens already in the cache, new tokens), those with one new token first; compares all of them."""
    make = torch.Generator().manual_seed(seed)
    heads, kv_heads, width, width_v = kind.get("shape", (6, 2, 8, 8))
    dtype, block = kind.get("dtype", torch.float64), kind.get("block", 4)
    backend = TorchSdpaBackend(torch.device("cpu"), dtype)
    counts = [-(-(old + new) // block) for old, new in lengths]
    order = (torch.randperm(sum(counts), generator=make) + 1).tolist()
    table = np.full((len(lengths), max(counts)), 10_000)  # what lies beyond a sequence's blocks must not be looked at
    for row, count in enumerate(counts):
        table[row, :count] = [order.pop() for _ in range(count)]
    keys, values = backend.allocate(FullAttentionSpec(block, kv_heads, width, width_v, str(dtype)[6:]), sum(counts) + 1)

    if dtype != torch.float64:  # what no token has written yet may be anything
        keys[:, block:], values[:, block:] = torch.nan, torch.nan

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=make, dtype=torch.float64).to(dtype)

    sinks = random(heads) if kind.get("sinks") else None
    layer = PagedLayer(backend, keys, values, kind.get("window"), kind.get("softcap"), 0.3, sinks)

    pasts = [(random(old, kv_heads, width), random(old, kv_heads, width_v)) for old, _ in lengths]
    for row, (past_keys, past_values) in enumerate(pasts):
        slots = [table[row, p // block] * block + p % block for p in range(len(past_keys))]
        keys[:, slots], values[:, slots] = past_keys.transpose(0, 1), past_values.transpose(0, 1)
    new = [(random(n, heads, width), random(n, kv_heads, width), random(n, kv_heads, width_v)) for _, n in lengths]
    positions = [(row, p) for row, (old, n) in enumerate(lengths) for p in range(old, old + n)]
    meta = AttentionMetadata(
        block_size=block,
        num_decodes=sum(n == 1 for _, n in lengths),
        query_start_loc=np.cumsum([0, *(n for _, n in lengths)]),
        seq_lens=np.array([old + n for old, n in lengths]),
        block_table=table,
        slot_mapping=np.array([table[row, p // block] * block + p % block for row, p in positions]),
    )
    backend.begin_step(meta)
    flat = [torch.cat(parts).transpose(0, 1)[None] for parts in zip(*new, strict=True)]
    out = layer(*flat, scaling=0.3, s_aux=sinks)[0]
    for row, (query, key, value) in enumerate(new):
        past_keys, past_values = pasts[row]
        whole = torch.cat([past_keys, key]).double(), torch.cat([past_values, value]).double()
        expected = plainly(query.double(), *whole, layer)
        start, end = meta.query_start_loc[row], meta.query_start_loc[row + 1]
        tolerance = {2: 0.06, 4: 2e-6, 8: 1e-12}[dtype.itemsize]
        torch.testing.assert_close(out[start:end].double(), expected, atol=tolerance, rtol=tolerance)
    assert not keys[:, :block].any()  # the null block stays zero
