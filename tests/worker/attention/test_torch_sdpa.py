"""The paged backend against attention written out token by token."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_lite.wire.kv_cache_interface import FullAttentionSpec
from vllm_lite.worker.attention import torch_sdpa
from vllm_lite.worker.attention.interface import PagedLayer
from vllm_lite.worker.attention.metadata import AttentionMetadata
from vllm_lite.worker.attention.torch_sdpa import FEW_DECODES, GROUP_SLOTS, TorchSdpaBackend, group_by_length

BLOCK = 4


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
    dtype = kind.get("dtype", torch.float64)
    backend = TorchSdpaBackend(torch.device("cpu"), dtype)
    counts = [-(-(old + new) // BLOCK) for old, new in lengths]
    order = (torch.randperm(sum(counts), generator=make) + 1).tolist()
    table = np.full((len(lengths), max(counts)), 10_000)  # what lies beyond a sequence's blocks must not be looked at
    for row, count in enumerate(counts):
        table[row, :count] = [order.pop() for _ in range(count)]
    keys, values = backend.allocate(FullAttentionSpec(BLOCK, kv_heads, width, width_v, str(dtype)[6:]), sum(counts) + 1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=make, dtype=torch.float64).to(dtype)

    sinks = random(heads) if kind.get("sinks") else None
    layer = PagedLayer(backend, keys, values, kind.get("window"), kind.get("softcap"), 0.3, sinks)

    pasts = [(random(old, kv_heads, width), random(old, kv_heads, width_v)) for old, _ in lengths]
    for row, (past_keys, past_values) in enumerate(pasts):
        slots = [table[row, p // BLOCK] * BLOCK + p % BLOCK for p in range(len(past_keys))]
        keys[:, slots], values[:, slots] = past_keys.transpose(0, 1), past_values.transpose(0, 1)
    new = [(random(n, heads, width), random(n, kv_heads, width), random(n, kv_heads, width_v)) for _, n in lengths]
    positions = [(row, p) for row, (old, n) in enumerate(lengths) for p in range(old, old + n)]
    meta = AttentionMetadata(
        block_size=BLOCK,
        num_decodes=sum(n == 1 for _, n in lengths),
        query_start_loc=np.cumsum([0, *(n for _, n in lengths)]),
        seq_lens=np.array([old + n for old, n in lengths]),
        block_table=table,
        slot_mapping=np.array([table[row, p // BLOCK] * BLOCK + p % BLOCK for row, p in positions]),
    )
    backend.begin_step(meta)
    flat = [torch.cat(parts).transpose(0, 1)[None] for parts in zip(*new, strict=True)]
    out = layer(*flat, scaling=0.3, s_aux=sinks)[0]
    for row, (query, key, value) in enumerate(new):
        past_keys, past_values = pasts[row]
        whole = torch.cat([past_keys, key]).double(), torch.cat([past_values, value]).double()
        expected = plainly(query.double(), *whole, layer)
        start, end = meta.query_start_loc[row], meta.query_start_loc[row + 1]
        tolerance = {"atol": 0.03, "rtol": 0.03} if dtype.itemsize == 2 else {}
        torch.testing.assert_close(out[start:end].double(), expected, **tolerance)
    assert not keys[:, :BLOCK].any()  # the null block stays zero


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 5},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": True},
    "everything": {"window": 6, "softcap": 2.0, "sinks": True},
    "one head for all": {"shape": (4, 1, 8, 8)},
    "a head each": {"shape": (3, 3, 4, 4), "window": 3},
    "narrow values": {"shape": (4, 2, 12, 8)},
    "bfloat16": {"dtype": torch.bfloat16},
    "bfloat16 window": {"dtype": torch.bfloat16, "window": 5},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("few_slots", [0, torch_sdpa.FEW_SLOTS])
def test_decodes_chunks_and_whole_prompts_in_one_batch(kind: str, few_slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_sdpa, "FEW_SLOTS", few_slots)
    few = [(9, 1), (0, 1), (30, 1), (0, 4), (0, 13), (7, 6), (0, 3), (12, 3)]
    run(few, KINDS[kind])
    run([(length, 1) for length in range(3, 3 + FEW_DECODES + 5)] + few[3:], KINDS[kind])
    run([(12, 1)] * (FEW_DECODES + 1), KINDS[kind])


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_batch(data: st.DataObject) -> None:
    decodes = data.draw(st.lists(st.integers(0, 200), max_size=8))
    chunks = data.draw(st.lists(st.tuples(st.integers(0, 20), st.integers(2, 12)), min_size=0 if decodes else 1, max_size=3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_sdpa, "FEW_SLOTS", data.draw(st.sampled_from([0, 100, 2000])))
        lengths = [(old, 1) for old in decodes] + chunks
        run(lengths, KINDS[data.draw(st.sampled_from(sorted(KINDS)))], data.draw(st.integers(0, 9)))


@given(st.lists(st.integers(1, 20_000), max_size=40))
def test_groups_hold_each_sequence_once_with_little_padding(lengths: list[int]) -> None:
    groups = group_by_length(np.array(lengths, np.int64))
    assert sorted(np.concatenate(groups).tolist() if groups else []) == list(range(len(lengths)))
    for group in groups:
        own = [lengths[row] for row in group]
        assert group.tolist() == sorted(group.tolist())
        assert max(own) <= max(64, 2 * min(own))
        assert len(own) == 1 or len(own) * max(own) <= GROUP_SLOTS


def test_a_cache_is_zero_and_takes_no_memory_before_it_is_used() -> None:
    backend = TorchSdpaBackend(torch.device("cpu"), torch.bfloat16)
    spec = FullAttentionSpec(16, 2, 64, 32, "bfloat16")
    with open("/proc/self/statm") as statm:
        before = int(statm.read().split()[1])
        keys, values = backend.allocate(spec, num_blocks=100_000)
        statm.seek(0)
        after = int(statm.read().split()[1])
    assert keys.shape == (2, 1_600_000, 64)
    assert values.shape == (2, 1_600_000, 32)
    assert keys.dtype == torch.bfloat16
    assert not keys[:, -1].any()
    assert (after - before) * 4096 < math.prod(keys.shape) // 10
