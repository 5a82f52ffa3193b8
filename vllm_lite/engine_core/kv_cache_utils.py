"""Blocks, the order in which free ones are taken, their hashes, and how many there are.

Process: engine core. Knows: ids, hashes, bytes. Does not know: tensors, or which request holds which block.
Mirrors: vllm/v1/core/kv_cache_utils.py
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import refuse
from vllm_lite.engine_core.request import BlockHasher, Request
from vllm_lite.exceptions import UnsupportedModelError
from vllm_lite.wire.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

NONE_HASH = bytes(32)  # the parent of a first block
_MIB = 1 << 20


@dataclass(slots=True, eq=False)
class KVCacheBlock:
    """One block: how many requests hold it, and the hash under which the prefix cache knows it (None: it does not)."""

    block_id: int
    ref_cnt: int = 0
    block_hash: bytes | None = None


class FreeKVCacheBlockQueue:
    """Free blocks in the order in which they are taken; any of them can be taken out at once."""

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._blocks: OrderedDict[int, KVCacheBlock] = OrderedDict()
        self.append_n(blocks)

    @property
    def num_free_blocks(self) -> int:
        """How many there are."""
        return len(self._blocks)

    def popleft_n(self, count: int) -> list[KVCacheBlock]:
        """The first `count` blocks, taken out. Raises KeyError where there are fewer."""
        return [self._blocks.popitem(last=False)[1] for _ in range(count)]

    def remove(self, block: KVCacheBlock) -> None:
        """Take out a block from wherever it is. Raises KeyError where it is not free."""
        del self._blocks[block.block_id]

    def append_n(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Put blocks last, in this order."""
        for block in blocks:
            self._blocks[block.block_id] = block

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks first, in this order."""
        for block in reversed(blocks):
            self._blocks[block.block_id] = block
            self._blocks.move_to_end(block.block_id, last=False)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        return iter(self._blocks.values())


def hash_block_tokens(parent_hash: bytes, token_ids: Sequence[int], extra_keys: Sequence[str] = ()) -> bytes:
    """SHA-256 over the parent's hash (32 bytes), the block's tokens (8 bytes each) and `extra_keys`.

    Chained, so two blocks with one hash hold the same tokens after the same tokens.
    """
    digest = hashlib.sha256(parent_hash, usedforsecurity=False)
    digest.update(array("q", token_ids))
    if extra_keys:
        digest.update(msgspec.msgpack.encode(extra_keys))
    return digest.digest()


def get_request_block_hasher(block_size: int) -> BlockHasher:
    """A function that hashes a request's full blocks that have no hash yet. The cache salt is a key of the first block only."""

    def hash_new_blocks(request: Request) -> list[bytes]:
        hashes: list[bytes] = []
        first = len(request.block_hashes)
        parent = request.block_hashes[-1] if first else NONE_HASH
        for index in range(first, request.num_tokens // block_size):
            extra_keys = (request.cache_salt,) if index == 0 and request.cache_salt else ()
            parent = hash_block_tokens(parent, request.all_token_ids[index * block_size : (index + 1) * block_size], extra_keys)
            hashes.append(parent)
        return hashes

    return hash_new_blocks


def get_kv_cache_config(
    vllm_config: VllmConfig, specs: dict[str, FullAttentionSpec], available_bytes: int | None
) -> KVCacheConfig:
    """How many blocks to allocate: `num_gpu_blocks_override`, else what `kv_cache_memory_bytes` or `available_bytes` holds.

    Raises VLLMValidationError where one request of `max_model_len` tokens would not fit, with what to change.
    """
    if not specs:
        raise UnsupportedModelError("the model has no attention layer that keeps a KV cache")
    bytes_per_block = sum(spec.page_size_bytes for spec in specs.values())
    cache = vllm_config.cache_config
    if cache.num_gpu_blocks_override is not None:
        num_blocks = cache.num_gpu_blocks_override
    else:
        room = cache.kv_cache_memory_bytes if cache.kv_cache_memory_bytes is not None else available_bytes
        assert room is not None
        num_blocks = room // bytes_per_block
    max_model_len = vllm_config.model_config.max_model_len
    assert max_model_len is not None, "ModelConfig settles max_model_len from config.json"
    needed = -(-max_model_len // cache.block_size) + 1  # and the null block
    if needed > num_blocks:
        fits = max(0, num_blocks - 1) * cache.block_size
        has, needs = num_blocks * bytes_per_block / _MIB, needed * bytes_per_block / _MIB
        why = (
            f"the KV cache has {num_blocks} blocks of {cache.block_size} tokens ({has:.1f} MiB), and one request of "
            f"max_model_len ({max_model_len}) needs {needed} ({needs:.1f} MiB)"
        )
        if not fits:  # no length would do
            size = "gpu_memory_utilization" if cache.kv_cache_memory_bytes is None else "kv_cache_memory_bytes"
            raise refuse(size, getattr(cache, size), f"higher, there is too little memory: {why}")
        more = "kv_cache_memory_bytes, gpu_memory_utilization or num_gpu_blocks_override"
        raise refuse("max_model_len", max_model_len, f"<= {fits}: {why}. Lower it, or give the cache more by {more}")
    return KVCacheConfig(num_blocks, specs, [KVCacheGroupSpec(list(specs), next(iter(specs.values())))])
