from __future__ import annotations

import torch
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from vllm_lite.wire.kv_cache_interface import FullAttentionSpec
from vllm_lite.worker.attention.interface import ATTENTION_NAME, AttentionBackend, PagedLayer, paged_attention
from vllm_lite.worker.attention.metadata import AttentionMetadata


class Echo(AttentionBackend):
    """Answers the query, scaled, and remembers which layer asked."""

    name = "echo"

    def __init__(self) -> None:
        self.asked: list[PagedLayer] = []

    def allocate(self, spec: FullAttentionSpec, num_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(spec.num_kv_heads, num_blocks), torch.zeros(spec.num_kv_heads, num_blocks)

    def begin_step(self, metadata: AttentionMetadata) -> None:
        raise AssertionError

    def attend(self, layer: PagedLayer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        self.asked.append(layer)
        return (query * layer.scaling).transpose(0, 1)


def test_registered_for_attention_and_not_for_masks() -> None:
    assert AttentionInterface()[ATTENTION_NAME] is paged_attention
    assert ATTENTION_NAME not in ALL_MASK_ATTENTION_FUNCTIONS


def test_each_module_finds_its_own_layer() -> None:
    backends = Echo(), Echo()
    cache = torch.zeros(0)
    modules = [torch.nn.Identity(), torch.nn.Identity()]
    for module, backend in zip(modules, backends, strict=True):
        module.paged = PagedLayer(backend, cache, cache, None, None)
    query = torch.ones(1, 4, 3, 16)  # [1, H, T, D]
    sinks = torch.zeros(4)
    out, weights = paged_attention(modules[0], query, query, query, None, scaling=0.5, s_aux=sinks, dropout=0.0, is_causal=True)
    assert weights is None
    assert out.shape == (1, 3, 4, 16)
    assert out.unique().tolist() == [0.5]
    assert backends[0].asked == [modules[0].paged]
    assert backends[0].asked[0].sinks is sinks
    assert not backends[0].asked[0].plain
    out, _ = paged_attention(modules[1], query, query, query, None)
    assert out.unique().tolist() == [0.25]  # one over the root of the width, where the model names no scaling
    assert backends[1].asked[0].plain
