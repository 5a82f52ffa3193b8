"""The paged backend against attention written out token by token."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.attention.plainly import run
from vllm_lite.wire.kv_cache_interface import FullAttentionSpec
from vllm_lite.worker.attention.torch_sdpa import TorchSdpaBackend

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 5},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": True},
    "everything": {"window": 6, "softcap": 2.0, "sinks": True},
    "one head for all": {"shape": (4, 1, 8, 8)},
    "a head each": {"shape": (3, 3, 4, 4), "window": 3},
    "narrow values": {"shape": (4, 2, 12, 8)},
    "float32": {"dtype": torch.float32, "shape": (6, 2, 16, 8)},
    "float32 everything": {"dtype": torch.float32, "window": 6, "softcap": 2.0, "sinks": True},
    "float32 of odd width": {"dtype": torch.float32, "shape": (4, 2, 7, 7)},
    "float16": {"dtype": torch.float16},
    "bfloat16 everything": {"dtype": torch.bfloat16, "window": 6, "softcap": 2.0, "sinks": True},
    "bfloat16": {"dtype": torch.bfloat16},
    "bfloat16 window": {"dtype": torch.bfloat16, "window": 5},
}


@pytest.mark.parametrize("kind", KINDS)
def test_decodes_chunks_and_whole_prompts_in_one_batch(kind: str) -> None:
    run([(9, 1), (0, 1), (30, 1), (0, 4), (0, 13), (7, 6), (0, 3), (12, 3)], KINDS[kind])
    run([(12, 1)] * 5, KINDS[kind])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_batch(data: st.DataObject) -> None:
    decodes = data.draw(st.lists(st.integers(0, 200), max_size=8))
    chunks = data.draw(st.lists(st.tuples(st.integers(0, 20), st.integers(2, 12)), min_size=0 if decodes else 1, max_size=3))
    lengths = [(old, 1) for old in decodes] + chunks
    run(lengths, KINDS[data.draw(st.sampled_from(sorted(KINDS)))], data.draw(st.integers(0, 9)))


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
