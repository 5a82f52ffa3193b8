"""Free order, hashes, and how many blocks there are."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine_core.harness import make_config, make_request
from vllm_lite.engine_core.kv_cache_utils import (
    NONE_HASH,
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    get_kv_cache_config,
    hash_block_tokens,
)
from vllm_lite.exceptions import UnsupportedModelError, VLLMValidationError
from vllm_lite.wire.kv_cache_interface import FullAttentionSpec

SPEC = FullAttentionSpec(16, 2, 8, 8, "float32")  # 2048 bytes a block


def order(queue: FreeKVCacheBlockQueue) -> list[int]:
    return [block.block_id for block in queue]


def test_blocks_leave_in_front_and_return_at_either_end() -> None:
    blocks = [KVCacheBlock(i) for i in range(5)]
    queue = FreeKVCacheBlockQueue(blocks)
    taken = queue.popleft_n(2)
    assert [block.block_id for block in taken] == [0, 1]
    queue.remove(blocks[3])
    assert order(queue) == [2, 4]
    queue.append_n([blocks[1], blocks[0]])
    queue.prepend_n([blocks[3]])
    assert order(queue) == [3, 2, 4, 1, 0]
    assert queue.num_free_blocks == 5


def test_taking_what_is_not_free_is_an_error() -> None:
    queue = FreeKVCacheBlockQueue([KVCacheBlock(0)])
    (block,) = queue.popleft_n(1)
    with pytest.raises(KeyError):
        queue.popleft_n(1)
    with pytest.raises(KeyError):
        queue.remove(block)
    assert queue.num_free_blocks == 0


@given(st.lists(st.tuples(st.sampled_from(["pop", "remove", "append", "prepend"]), st.integers(0, 7)), max_size=40))
def test_the_free_queue_is_a_list(operations: list[tuple[str, int]]) -> None:
    blocks = [KVCacheBlock(i) for i in range(8)]
    queue, model = FreeKVCacheBlockQueue(blocks), list(range(8))
    for operation, number in operations:
        if operation == "pop" and model:
            assert queue.popleft_n(1)[0].block_id == model.pop(0)
        elif operation == "remove" and number in model:
            queue.remove(blocks[number])
            model.remove(number)
        elif operation == "append" and number not in model:
            queue.append_n([blocks[number]])
            model.append(number)
        elif operation == "prepend" and number not in model:
            queue.prepend_n([blocks[number]])
            model.insert(0, number)
        assert order(queue) == model
        assert queue.num_free_blocks == len(model)


def test_a_hash_is_a_function_of_parent_tokens_and_keys() -> None:
    tokens = [1, 2, 70000]
    plain = hash_block_tokens(NONE_HASH, tokens)
    assert plain == hashlib.sha256(NONE_HASH + struct.pack("=3q", *tokens)).digest()
    others = {
        hash_block_tokens(NONE_HASH, [1, 2, 70001]),
        hash_block_tokens(plain, tokens),
        hash_block_tokens(NONE_HASH, tokens, ["salt"]),
        hash_block_tokens(NONE_HASH, tokens, ["sal", "t"]),
        hash_block_tokens(NONE_HASH, tokens, [""]),
    }
    assert len({plain, *others}) == 6


def hashes(prompt: list[int], **fields: Any) -> list[bytes]:
    return make_request("r", prompt, block_size=2, **fields).block_hashes


def test_only_full_blocks_have_hashes_and_each_stands_for_all_tokens_before_it() -> None:
    assert len(hashes([1])) == 0
    assert len(hashes([1, 2, 3])) == 1
    assert hashes([1, 2, 3, 4]) == hashes([1, 2, 3, 4, 5])
    assert hashes([1, 2, 3, 4])[1] != hashes([9, 2, 3, 4])[1]


def test_the_salt_changes_every_hash_through_the_first_block() -> None:
    salted, plain = hashes([1, 2, 3, 4], cache_salt="s"), hashes([1, 2, 3, 4])
    assert salted[0] != plain[0]
    assert salted[1] != plain[1]
    assert salted[1] == hash_block_tokens(salted[0], [3, 4])  # it is no key of the second block itself


@pytest.mark.parametrize(
    ("override", "memory", "available", "num_blocks"),
    [(40, 10**9, None, 40), (None, 50 * 4096 + 100, None, 50), (None, None, 60 * 4096, 60), (40, None, 10**9, 40)],
)
def test_the_number_of_blocks(override: int | None, memory: int | None, available: int | None, num_blocks: int) -> None:
    config = make_config(block_size=16, max_model_len=100)
    config.cache_config.num_gpu_blocks_override = override
    config.cache_config.kv_cache_memory_bytes = memory
    made = get_kv_cache_config(config, {"l0": SPEC, "l1": SPEC}, available)
    assert made.num_blocks == num_blocks
    assert made.bytes_per_block == 4096
    assert [group.layer_names for group in made.kv_cache_groups] == [["l0", "l1"]]


@pytest.mark.parametrize(("max_model_len", "fits"), [(48, True), (49, False)])
def test_one_request_of_full_length_must_fit_beside_the_null_block(max_model_len: int, fits: bool) -> None:
    config = make_config(num_blocks=4, block_size=16, max_model_len=max_model_len)
    if fits:
        assert get_kv_cache_config(config, {"l0": SPEC}, None).num_blocks == 4
        return
    with pytest.raises(VLLMValidationError, match="max_model_len must be <= 48") as caught:
        get_kv_cache_config(config, {"l0": SPEC}, None)
    assert caught.value.parameter == "max_model_len"
    for remedy in ("4 blocks of 16 tokens", "needs 5", "kv_cache_memory_bytes", "num_gpu_blocks_override"):
        assert remedy in str(caught.value)


@pytest.mark.parametrize(("given", "size"), [(None, "gpu_memory_utilization"), (100, "kv_cache_memory_bytes")])
def test_no_room_at_all_names_what_sizes_the_cache(given: int | None, size: str) -> None:
    config = make_config(block_size=16, max_model_len=64)
    config.cache_config.num_gpu_blocks_override = None
    config.cache_config.kv_cache_memory_bytes = given
    with pytest.raises(VLLMValidationError, match=f"{size} must be higher, there is too little memory: .* 0 blocks") as caught:
        get_kv_cache_config(config, {"l0": SPEC}, 100)
    assert caught.value.parameter == size


def test_a_model_without_attention_cannot_be_served() -> None:
    with pytest.raises(UnsupportedModelError, match="no attention layer"):
        get_kv_cache_config(make_config(), {}, 10**9)
