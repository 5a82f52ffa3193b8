"""What the worker tells the engine core about its KV cache, and what it is told to allocate.

Process: engine core and worker. Knows: shapes and bytes. Does not know: tensors; dtypes are strings.
Mirrors: vllm/v1/kv_cache_interface.py
"""

import msgspec

DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int64": 8}


class FullAttentionSpec(msgspec.Struct, array_like=True, frozen=True):
    """The KV cache of one layer: K holds num_blocks * block_size slots of [num_kv_heads, head_size], V likewise with
    `head_size_v`; their order in memory is the attention backend's choice.

    `sliding_window` narrows what is read, not what is kept.
    """

    block_size: int
    num_kv_heads: int
    head_size: int
    head_size_v: int
    dtype: str
    sliding_window: int | None = None

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of this layer, K and V together."""
        return self.block_size * self.num_kv_heads * (self.head_size + self.head_size_v) * DTYPE_BYTES[self.dtype]


class KVCacheGroupSpec(msgspec.Struct, array_like=True):
    """Layers that share one block table."""

    layer_names: list[str]
    kv_cache_spec: FullAttentionSpec


class KVCacheConfig(msgspec.Struct, array_like=True):
    """How many blocks to allocate, and each layer's spec by layer name. Block 0 is the null block and holds no one's tokens."""

    num_blocks: int
    kv_cache_specs: dict[str, FullAttentionSpec]
    kv_cache_groups: list[KVCacheGroupSpec]

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers."""
        return sum(spec.page_size_bytes for spec in self.kv_cache_specs.values())
