"""All blocks of the KV cache: which are free, who shares one, and which can be found again by hash.

Process: engine core. Knows: blocks and hashes. Does not know: requests or tokens.
A hash leads to one block. A second block with the same content (the last block of a fully cached prompt is computed again)
stays unknown to the prefix cache and is the first to be used again.
Mirrors: vllm/v1/core/block_pool.py
"""

from collections.abc import Iterable, Sequence

from vllm_lite.engine_core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock


class BlockPool:
    """`num_gpu_blocks` blocks, of which number 0 is the null block: never free, never anyone's."""

    def __init__(self, num_gpu_blocks: int) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_gpu_blocks)]
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks)
        self.cached_block_hash_to_block: dict[bytes, KVCacheBlock] = {}
        self.num_evicted = 0  # cached blocks that were forgotten because somebody needed room
        (self.null_block,) = self.free_block_queue.popleft_n(1)

    def get_cached_block(self, block_hash: bytes) -> KVCacheBlock | None:
        """The block that holds, or is about to hold, the tokens of `block_hash`."""
        return self.cached_block_hash_to_block.get(block_hash)

    def cache_full_blocks(
        self, blocks: Sequence[KVCacheBlock], block_hashes: Sequence[bytes], num_cached_blocks: int, num_full_blocks: int
    ) -> None:
        """Make `blocks[num_cached_blocks:num_full_blocks]` known by their hashes."""
        for index in range(num_cached_blocks, num_full_blocks):
            block, block_hash = blocks[index], block_hashes[index]
            if block.block_hash is None and self.cached_block_hash_to_block.setdefault(block_hash, block) is block:
                block.block_hash = block_hash

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take free blocks, forgetting what they held. Raises ValueError where there are too few."""
        if num_blocks > self.free_block_queue.num_free_blocks:
            raise ValueError(f"cannot take {num_blocks} of {self.free_block_queue.num_free_blocks} free blocks")
        blocks = self.free_block_queue.popleft_n(num_blocks)
        for block in blocks:
            if block.block_hash is not None:
                self.forget(block)
                self.num_evicted += 1
            block.ref_cnt = 1
        return blocks

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Hold cached blocks for one more request, so that nobody takes them."""
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Let go of blocks. Those nobody holds now become free: hashed ones last in the queue (in this order), others first."""
        hashed: list[KVCacheBlock] = []
        plain: list[KVCacheBlock] = []
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                (plain if block.block_hash is None else hashed).append(block)
        self.free_block_queue.prepend_n(plain)
        self.free_block_queue.append_n(hashed)

    def forget(self, block: KVCacheBlock) -> None:
        """Drop a block from the prefix cache, if it is there."""
        if block.block_hash is not None:
            del self.cached_block_hash_to_block[block.block_hash]
            block.block_hash = None

    def reset_prefix_cache(self) -> bool:
        """Forget every hash; False (and nothing done) while a request holds a block."""
        if self.get_num_free_blocks() != self.num_gpu_blocks - 1:
            return False
        for block in self.blocks:
            block.block_hash = None
        self.cached_block_hash_to_block.clear()
        return True

    def get_num_free_blocks(self) -> int:
        """Blocks that nobody holds; cached ones among them."""
        return self.free_block_queue.num_free_blocks

    def get_usage(self) -> float:
        """The share of blocks that requests hold, 0 to 1."""
        return 1.0 - self.get_num_free_blocks() / (self.num_gpu_blocks - 1)
