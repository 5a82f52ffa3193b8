"""Batches that an attention backend must get right, and how far the triton backend is from the reference on each.

Used by gpu_check.py on a GPU and by the tests in Triton's interpreter. The reference is torch_sdpa in float64 on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from vllm_lite.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm_lite.wire.kv_cache_interface import FullAttentionSpec
from vllm_lite.worker.attention.interface import AttentionBackend, PagedLayer
from vllm_lite.worker.attention.metadata import AttentionMetadata
from vllm_lite.worker.attention.torch_sdpa import TorchSdpaBackend
from vllm_lite.worker.attention.triton_backend import TritonBackend
from vllm_lite.worker.probe import AttentionCall

# ||out - reference|| / ||reference||, at most.
BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


@dataclass(frozen=True)
class Case:
    """One layer and one step. `batch`: (new tokens, tokens before) of each sequence, single tokens first."""

    name: str
    batch: tuple[tuple[int, int], ...]
    heads: tuple[int, int] = (4, 2)  # of queries, of keys and values
    widths: tuple[int, int] = (16, 16)  # of keys, of values
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    block_size: int = 16
    dtype: torch.dtype = torch.float32


DECODES = ((1, 5), (1, 40), (1, 170))
MIXED = ((1, 5), (1, 150), (7, 0), (30, 13))
CASES = [
    Case("decodes, split", DECODES),
    Case("one long decode, split", ((1, 300),)),
    Case("many decodes, whole", tuple((1, 3 + 9 * n) for n in range(12))),
    Case("first tokens of sequences", ((1, 0), (1, 0), (9, 0))),
    Case("a fresh prompt over several items", ((100, 0),)),
    Case("a later chunk", ((40, 90),)),
    Case("decodes and chunks", MIXED),
    Case("window", MIXED, window=9),
    Case("window as long as a tile", MIXED, window=64),
    Case("softcap", MIXED, softcap=2.0),
    Case("sinks, split", DECODES, sinks=True),
    Case("sinks and window", MIXED, sinks=True, window=20),
    Case("everything at once", MIXED, (6, 2), (24, 40), window=30, softcap=3.0, sinks=True, block_size=5),
    Case("dk above dv", MIXED, widths=(48, 32)),
    Case("heads no power of two", MIXED, (9, 3)),
    Case("as many KV heads as heads", MIXED, (3, 3)),
    Case("one KV head", MIXED, (8, 1)),
    Case("one token to a block", DECODES, block_size=1),
    Case("blocks longer than a tile", MIXED, block_size=128),
    Case("float16", MIXED, widths=(64, 64), dtype=torch.float16),
    Case("bfloat16", MIXED, widths=(64, 64), window=100, dtype=torch.bfloat16),
]


@dataclass
class Scene:
    """A case filled with random numbers. `query` [H, T, D], `key` [Hkv, T, D], `value` [Hkv, T, Dv] are views as models make
    them (tokens before heads in memory); `past` [slots, Hkv, D] and [.., Dv] are the caches before the step, float64."""

    case: Case
    metadata: AttentionMetadata
    num_blocks: int
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    past: tuple[torch.Tensor, torch.Tensor]
    sinks: torch.Tensor | None

    def attend(self, backend: AttentionBackend, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """One step of the layer, [T, H, Dv]; the backend must have begun the step. Caches are laid out as the backend likes."""
        case, kv_heads = self.case, self.case.heads[1]
        caches = backend.allocate(spec_of(case, dtype), self.num_blocks)
        for cache, past in zip(caches, self.past, strict=True):
            cache.copy_(past.transpose(0, 1) if cache.shape[0] == kv_heads else past)
        sinks = None if self.sinks is None else self.sinks.to(device, dtype)
        layer = PagedLayer(backend, *caches, case.window, case.softcap, 0.3, sinks)
        return backend.attend(layer, *(x.to(device, dtype) for x in (self.query, self.key, self.value)))


def spec_of(case: Case, dtype: torch.dtype) -> FullAttentionSpec:
    return FullAttentionSpec(case.block_size, case.heads[1], *case.widths, str(dtype).removeprefix("torch."), case.window)


def lay_out(case: Case, seed: int = 0) -> tuple[AttentionMetadata, int]:
    """The step's metadata, with blocks scattered over the cache, and the number of blocks; block 0 stays empty."""
    random = np.random.default_rng(seed)
    counts, before = np.array(case.batch).T
    lengths = counts + before
    blocks = -(-lengths // case.block_size)
    num_blocks = int(blocks.sum()) + 1
    table = np.zeros((len(counts), blocks.max()), np.int64)
    table[np.arange(blocks.max()) < blocks[:, None]] = random.permutation(np.arange(1, num_blocks))
    starts = np.concatenate([[0], np.cumsum(counts)])
    positions = np.concatenate([np.arange(first, end) for first, end in zip(before, lengths, strict=True)])
    owner = np.repeat(np.arange(len(counts)), counts)
    slots = table[owner, positions // case.block_size] * case.block_size + positions % case.block_size
    return AttentionMetadata(case.block_size, int((counts == 1).sum()), starts, lengths, table, slots), num_blocks


def set_scene(case: Case, seed: int = 0) -> Scene:
    """Random tokens and a random past."""
    generator = torch.Generator().manual_seed(seed)
    metadata, num_blocks = lay_out(case, seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(case.dtype).double()

    (heads, kv_heads), tokens = case.heads, len(metadata.slot_mapping)
    query, key, value = (
        normal(tokens, count, width).transpose(0, 1)
        for count, width in ((heads, case.widths[0]), (kv_heads, case.widths[0]), (kv_heads, case.widths[1]))
    )
    past = tuple(normal(num_blocks * case.block_size, kv_heads, width) for width in case.widths)
    for cache in past:
        cache[: case.block_size] = 0
    return Scene(case, metadata, num_blocks, query, key, value, past, normal(heads) if case.sinks else None)


def triton_backend(case: Case, device: torch.device, max_num_seqs: int = 32, max_num_tokens: int = 2048) -> TritonBackend:
    """The backend as an engine with one layer of this kind would make it."""
    (heads, kv_heads), (width, value_width) = case.heads, case.widths
    call = AttentionCall(torch.nn.Identity(), kv_heads, width, value_width, case.window, case.softcap, False, {}, heads)
    config = VllmConfig(
        ModelConfig("case", max_model_len=max(1024, *(sum(pair) for pair in case.batch))),
        CacheConfig(block_size=case.block_size),
        SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_tokens),
    )
    return TritonBackend(config, device, case.dtype, {"layer": call})


def reference(scene: Scene) -> torch.Tensor:
    """float64 [T, H, Dv]."""
    backend = TorchSdpaBackend(torch.device("cpu"), torch.float64)
    backend.begin_step(scene.metadata)
    return scene.attend(backend, torch.device("cpu"), torch.float64)


def error(case: Case, device: torch.device, seed: int = 0) -> float:
    """||triton - reference|| / ||reference||."""
    scene, backend = set_scene(case, seed), triton_backend(case, device)
    backend.begin_step(scene.metadata)
    expected = reference(scene)
    found = scene.attend(backend, device, case.dtype).cpu().double()
    return float((found - expected).norm() / expected.norm())


def repeated_call(case: Case, backend: AttentionBackend, device: torch.device) -> Callable[[], torch.Tensor]:
    """One layer's attention over random numbers made on the device, to be timed."""
    metadata, num_blocks = lay_out(case)
    backend.begin_step(metadata)
    caches = backend.allocate(spec_of(case, case.dtype), num_blocks)
    for cache in caches:
        cache.normal_()
    (heads, kv_heads), tokens = case.heads, len(metadata.slot_mapping)
    query, key, value = (
        torch.randn(tokens, count, width, device=device, dtype=case.dtype).transpose(0, 1)
        for count, width in ((heads, case.widths[0]), (kv_heads, case.widths[0]), (kv_heads, case.widths[1]))
    )
    layer = PagedLayer(backend, *caches, case.window, case.softcap, case.widths[0] ** -0.5)
    return lambda: backend.attend(layer, query, key, value)
