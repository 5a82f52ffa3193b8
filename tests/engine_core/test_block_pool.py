"""Sharing, freeing and forgetting blocks."""

from __future__ import annotations

import pytest

from vllm_lite.engine_core.block_pool import BlockPool
from vllm_lite.engine_core.kv_cache_utils import KVCacheBlock


def ids(blocks: list[KVCacheBlock]) -> list[int]:
    return [block.block_id for block in blocks]


def free_order(pool: BlockPool) -> list[int]:
    return ids(list(pool.free_block_queue))


def test_block_0_is_the_null_block_and_never_given_away() -> None:
    pool = BlockPool(5)
    assert pool.null_block.block_id == 0
    assert pool.get_num_free_blocks() == 4
    assert ids(pool.get_new_blocks(4)) == [1, 2, 3, 4]
    assert pool.get_usage() == 1.0
    with pytest.raises(ValueError, match="cannot take 1 of 0"):
        pool.get_new_blocks(1)


def test_usage_counts_the_blocks_that_somebody_holds() -> None:
    pool = BlockPool(11)
    assert pool.get_usage() == 0.0
    pool.get_new_blocks(3)
    assert pool.get_usage() == pytest.approx(0.3)


def test_case_23_hashed_blocks_are_freed_to_the_end_and_others_to_the_front() -> None:
    pool = BlockPool(8)
    blocks = pool.get_new_blocks(4)  # 1 2 3 4
    pool.cache_full_blocks(blocks, [b"a", b"b"], 0, 2)
    pool.free_blocks(reversed(blocks))
    assert free_order(pool) == [4, 3, 5, 6, 7, 2, 1]


def test_a_block_is_free_when_the_last_holder_lets_go() -> None:
    pool = BlockPool(4)
    blocks = pool.get_new_blocks(2)
    pool.touch(blocks[:1])
    pool.free_blocks(blocks)
    assert free_order(pool) == [2, 3]
    pool.free_blocks(blocks[:1])
    assert sorted(free_order(pool)) == [1, 2, 3]


def test_a_cached_block_is_found_and_taken_out_of_the_free_queue_until_it_is_used_for_something_else() -> None:
    pool = BlockPool(4)
    blocks = pool.get_new_blocks(1)
    pool.cache_full_blocks(blocks, [b"a"], 0, 1)
    pool.free_blocks(blocks)
    found = pool.get_cached_block(b"a")
    assert found is blocks[0]
    pool.touch([found])
    assert free_order(pool) == [2, 3]
    pool.free_blocks([found])
    assert ids(pool.get_new_blocks(3)) == [2, 3, 1]
    assert pool.get_cached_block(b"a") is None
    assert found.block_hash is None


def test_the_second_block_of_one_content_stays_unknown() -> None:
    pool = BlockPool(4)
    first, second = pool.get_new_blocks(1), pool.get_new_blocks(1)
    pool.cache_full_blocks(first, [b"a"], 0, 1)
    pool.cache_full_blocks(second, [b"a"], 0, 1)
    assert pool.get_cached_block(b"a") is first[0]
    assert second[0].block_hash is None
    pool.forget(second[0])
    assert pool.get_cached_block(b"a") is first[0]


def test_reset_needs_every_block_free() -> None:
    pool = BlockPool(4)
    blocks = pool.get_new_blocks(1)
    pool.cache_full_blocks(blocks, [b"a"], 0, 1)
    assert not pool.reset_prefix_cache()
    assert pool.get_cached_block(b"a") is blocks[0]
    pool.free_blocks(blocks)
    assert pool.reset_prefix_cache()
    assert pool.get_cached_block(b"a") is None
    assert blocks[0].block_hash is None
