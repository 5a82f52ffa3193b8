"""How the paged KV cache is sized.

Process: all. Knows: sizes. Does not know: blocks or tensors.
Mirrors: vllm/config/cache.py
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_lite.config.checks import check_bool, check_int, check_number


@dataclass
class CacheConfig:
    """Sizes of the KV cache.

    `num_gpu_blocks` is None until the worker has measured (or `num_gpu_blocks_override` or `kv_cache_memory_bytes` has fixed)
    how many blocks fit; READY brings it to the front end. vLLM's name is kept although the blocks may lie in CPU memory.
    """

    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool = True
    num_gpu_blocks: int | None = None

    def __post_init__(self) -> None:
        check_int("block_size", self.block_size, 1)
        check_number("gpu_memory_utilization", self.gpu_memory_utilization, 0, 1, above_low=True)
        check_bool("enable_prefix_caching", self.enable_prefix_caching)
        if self.kv_cache_memory_bytes is not None:
            check_int("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1)
        if self.num_gpu_blocks_override is not None:
            check_int("num_gpu_blocks_override", self.num_gpu_blocks_override, 2)
