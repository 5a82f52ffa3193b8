"""Which blocks each request holds, and what the prefix cache can spare it.

Process: engine core. Knows: requests and blocks of one KV cache group (all layers share a block table). Does not know: budgets,
queues, or the worker's tensors.
Blocks become known to the prefix cache when they are allocated, before they are computed: a later request of the same step may
share them already, since the worker writes the whole step's K and V of a layer before it reads any.
Mirrors: vllm/v1/core/kv_cache_manager.py, vllm/v1/core/single_type_kv_cache_manager.py
"""

from typing import NamedTuple

from vllm_lite.engine_core.block_pool import BlockPool
from vllm_lite.engine_core.kv_cache_utils import KVCacheBlock
from vllm_lite.engine_core.request import Request
from vllm_lite.wire.kv_cache_interface import KVCacheConfig
from vllm_lite.wire.stats import PrefixCacheStats


class KVCacheBlocks(NamedTuple):
    """Blocks of one request, a list for each KV cache group."""

    blocks: tuple[list[KVCacheBlock], ...]

    def get_block_ids(self) -> list[list[int]]:
        """Their ids, as the worker wants them."""
        return [[block.block_id for block in group] for group in self.blocks]


class KVCacheManager:
    """Grants and takes back blocks. A request's blocks are only ever added to, until all are freed at once."""

    def __init__(self, kv_cache_config: KVCacheConfig, enable_caching: bool = True) -> None:
        assert len(kv_cache_config.kv_cache_groups) == 1, "one KV cache group: every layer shares one block table"
        self.block_size = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        self.enable_caching = enable_caching
        self.block_pool = BlockPool(kv_cache_config.num_blocks)
        self.empty_kv_cache_blocks = KVCacheBlocks(([],))
        self.req_to_blocks: dict[str, list[KVCacheBlock]] = {}
        self._num_cached_blocks: dict[str, int] = {}
        self._stats = PrefixCacheStats()
        self.num_refused = 0  # how often too few blocks were free; each request counts its own

    @property
    def usage(self) -> float:
        """The share of blocks that requests hold, 0 to 1."""
        return self.block_pool.get_usage()

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """The cached blocks that `request` begins with, and the tokens they hold.

        At least the last token is left to compute, since sampling needs its logits; so a fully cached prompt that ends with a
        block computes that whole block again.
        """
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return self.empty_kv_cache_blocks, 0
        request.update_block_hashes()
        hits: list[KVCacheBlock] = []
        for block_hash in request.block_hashes[: (request.num_tokens - 1) // self.block_size]:
            block = self.block_pool.get_cached_block(block_hash)
            if block is None:
                break
            hits.append(block)
        return KVCacheBlocks((hits,)), len(hits) * self.block_size

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        new_computed_blocks: KVCacheBlocks | None = None,
        full_sequence_must_fit: bool = False,
    ) -> KVCacheBlocks | None:
        """Room for `num_new_tokens` after the computed ones: the new blocks, or None where too few are free.

        `new_computed_blocks` are cached blocks that a waiting request begins with. With `full_sequence_must_fit` all of its
        known tokens must fit now, not only the chunk that is scheduled. Nothing has changed where None is returned.
        """
        if new_computed_blocks is not None:
            return self._admit(request, num_new_tokens, new_computed_blocks.blocks[0], full_sequence_must_fit)
        blocks = self.req_to_blocks[request.request_id]
        num_tokens = request.num_computed_tokens + num_new_tokens
        new_blocks = self.empty_kv_cache_blocks
        missing = -(-num_tokens // self.block_size) - len(blocks)
        if missing > 0:
            if missing > self.block_pool.free_block_queue.num_free_blocks:
                self._count_refusal(request)
                return None
            new = self.block_pool.get_new_blocks(missing)
            blocks.extend(new)
            new_blocks = KVCacheBlocks((new,))
        num_known_tokens = min(num_tokens, request.num_tokens)  # the last may be a token that is yet to be sampled
        if num_known_tokens // self.block_size > self._num_cached_blocks[request.request_id]:
            self._cache_blocks(request, num_known_tokens)
        return new_blocks

    def get_block_ids(self, request_id: str) -> list[list[int]]:
        """All block ids of a request, a list for each KV cache group."""
        return KVCacheBlocks((self.req_to_blocks[request_id],)).get_block_ids()

    def free(self, request: Request) -> None:
        """Take back all blocks; the last is taken again first, so that a prompt's beginning stays cached longest."""
        self.block_pool.free_blocks(reversed(self.req_to_blocks.pop(request.request_id, [])))
        self._num_cached_blocks.pop(request.request_id, None)

    def forget_uncomputed(self, request: Request, num_computed_tokens: int) -> None:
        """Drop from the prefix cache what was allocated to `request` but will not be computed, before its blocks are freed."""
        first = num_computed_tokens // self.block_size
        for block in self.req_to_blocks.get(request.request_id, [])[first:]:
            self.block_pool.forget(block)

    def record_look_up(self, request: Request, num_cached_tokens: int) -> None:
        """Count one look-up of a request that was then admitted; those of preempted requests apart."""
        stats = self._stats
        if request.num_preemptions:
            stats.preempted_requests += 1
            stats.preempted_queries += request.num_tokens
            stats.preempted_hits += num_cached_tokens
        else:
            stats.requests += 1
            stats.queries += request.num_tokens
            stats.hits += num_cached_tokens

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """The look-ups since the last call; None where there were none."""
        if self._stats.requests == 0 and self._stats.preempted_requests == 0:
            return None
        stats, self._stats = self._stats, PrefixCacheStats()
        return stats

    def reset_prefix_cache(self) -> bool:
        """Forget every cached block; False (and nothing done) while a request holds one."""
        return self.block_pool.reset_prefix_cache()

    def _admit(
        self, request: Request, num_new_tokens: int, computed_blocks: list[KVCacheBlock], full_sequence_must_fit: bool
    ) -> KVCacheBlocks | None:
        num_tokens = len(computed_blocks) * self.block_size + num_new_tokens
        must_fit = request.num_tokens if full_sequence_must_fit else num_tokens
        taken_from_free = sum(block.ref_cnt == 0 for block in computed_blocks)
        missing = -(-must_fit // self.block_size) - len(computed_blocks) + taken_from_free
        if missing > self.block_pool.get_num_free_blocks():
            self._count_refusal(request)
            return None
        self.block_pool.touch(computed_blocks)
        new = self.block_pool.get_new_blocks(-(-num_tokens // self.block_size) - len(computed_blocks))
        self.req_to_blocks[request.request_id] = [*computed_blocks, *new]
        self._num_cached_blocks[request.request_id] = len(computed_blocks)
        self._cache_blocks(request, num_tokens)
        return KVCacheBlocks((new,))

    def _count_refusal(self, request: Request) -> None:
        self.num_refused += 1
        request.num_refused += 1

    def _cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Make the full blocks among the first `num_tokens` known to the prefix cache."""
        if not self.enable_caching:
            return
        request_id = request.request_id
        num_full_blocks = num_tokens // self.block_size
        if len(request.block_hashes) < num_full_blocks:
            request.update_block_hashes()
        self.block_pool.cache_full_blocks(
            self.req_to_blocks[request_id], request.block_hashes, self._num_cached_blocks[request_id], num_full_blocks
        )
        self._num_cached_blocks[request_id] = num_full_blocks
