"""What a request is granted, what it shares, and what is refused without a trace."""

from __future__ import annotations

import pytest

from tests.engine_core.harness import kv_config, make_request
from vllm_lite.engine_core.kv_cache_manager import KVCacheManager
from vllm_lite.engine_core.request import Request
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from vllm_lite.wire.stats import PrefixCacheStats

PROMPT = list(range(100, 108))  # two blocks of 4


def admit(manager: KVCacheManager, request: Request, count: int, *, must_fit: bool = False) -> list[int] | None:
    """The block ids of an admitted request."""
    computed, num_computed = manager.get_computed_blocks(request)
    if manager.allocate_slots(request, count, computed, must_fit) is None:
        return None
    request.num_computed_tokens = num_computed + count
    return manager.get_block_ids(request.request_id)[0]


def test_one_group_only() -> None:
    config = kv_config(4, 4)
    group = config.kv_cache_groups[0]
    with pytest.raises(AssertionError, match="one KV cache group"):
        KVCacheManager(KVCacheConfig(4, config.kv_cache_specs, [group, KVCacheGroupSpec([], group.kv_cache_spec)]))


def test_blocks_are_granted_as_tokens_need_them() -> None:
    manager = KVCacheManager(kv_config(10, 4))
    request = make_request("r", PROMPT)
    assert admit(manager, request, 5) == [1, 2]
    assert manager.allocate_slots(request, 3) is manager.empty_kv_cache_blocks
    request.num_computed_tokens = 8
    request.append_output_token_ids(1)
    more = manager.allocate_slots(request, 1)
    assert more is not None
    assert more.get_block_ids() == [[3]]
    assert manager.get_block_ids("r") == [[1, 2, 3]]
    assert manager.usage == pytest.approx(3 / 9)


def test_a_refusal_changes_nothing() -> None:
    manager = KVCacheManager(kv_config(4, 4))
    first, second = make_request("a", PROMPT), make_request("b", [7] * 9)
    assert admit(manager, first, 8) == [1, 2]
    free = list(manager.block_pool.free_block_queue)
    assert admit(manager, second, 9) is None
    assert "b" not in manager.req_to_blocks
    first.append_output_token_ids(1)
    assert manager.allocate_slots(first, 5) is None
    assert manager.get_block_ids("a") == [[1, 2]]
    assert list(manager.block_pool.free_block_queue) == free


@pytest.mark.parametrize(("length", "cached"), [(4, 0), (5, 4), (8, 4), (9, 8), (11, 8)])
def test_at_least_one_token_is_left_to_compute(length: int, cached: int) -> None:
    manager = KVCacheManager(kv_config(10, 4))
    prompt = [*PROMPT, 1, 2, 3]
    admit(manager, make_request("first", prompt), len(prompt))
    _, found = manager.get_computed_blocks(make_request("second", prompt[:length]))
    assert found == cached


def test_a_hit_stops_at_the_first_miss() -> None:
    manager = KVCacheManager(kv_config(10, 4))
    first = make_request("first", PROMPT + PROMPT)
    admit(manager, first, 16)
    hit = manager.block_pool.get_cached_block(first.block_hashes[1])
    assert hit is not None
    manager.block_pool.forget(hit)
    assert manager.get_computed_blocks(make_request("second", PROMPT + PROMPT))[1] == 4


def test_blocks_are_shared_before_they_are_computed() -> None:
    manager = KVCacheManager(kv_config(10, 4))
    assert admit(manager, make_request("a", [*PROMPT, 1]), 9) == [1, 2, 3]
    assert admit(manager, make_request("b", [*PROMPT, 1]), 1) == [1, 2, 4]


def test_case_21_a_salt_is_a_cache_of_its_own() -> None:
    manager = KVCacheManager(kv_config(20, 4))
    admit(manager, make_request("a", [*PROMPT, 1], cache_salt="x"), 9)
    assert manager.get_computed_blocks(make_request("b", [*PROMPT, 1]))[1] == 0
    assert manager.get_computed_blocks(make_request("c", [*PROMPT, 1], cache_salt="y"))[1] == 0
    assert manager.get_computed_blocks(make_request("d", [*PROMPT, 1], cache_salt="x"))[1] == 8


def test_who_needs_the_whole_prompt_gets_no_hit_but_leaves_blocks_for_others() -> None:
    manager = KVCacheManager(kv_config(20, 4))
    params = SamplingParams(prompt_logprobs=0)
    admit(manager, make_request("a", [*PROMPT, 1], params), 9)
    assert manager.get_computed_blocks(make_request("b", [*PROMPT, 1], params))[1] == 0
    assert manager.get_computed_blocks(make_request("c", [*PROMPT, 1]))[1] == 8


def test_cached_blocks_that_nobody_holds_count_as_free_ones_that_are_taken() -> None:
    manager = KVCacheManager(kv_config(4, 4))  # three usable blocks
    first = make_request("a", [*PROMPT, 1])
    admit(manager, first, 9)
    manager.free(first)
    assert manager.block_pool.get_num_free_blocks() == 3
    assert admit(manager, make_request("b", [*PROMPT, *range(5)]), 5) is None  # two hits of three free, two more wanted
    assert admit(manager, make_request("c", [*PROMPT, *range(4)]), 4) == [1, 2, 3]


def test_the_whole_sequence_must_fit_where_that_is_asked() -> None:
    manager = KVCacheManager(kv_config(3, 4))
    assert admit(manager, make_request("a", [*PROMPT, 1]), 4, must_fit=True) is None
    assert admit(manager, make_request("a", PROMPT), 4, must_fit=True) == [1]
    assert manager.block_pool.get_num_free_blocks() == 1  # reserved nothing, only looked


def test_a_prompts_beginning_is_evicted_last() -> None:
    manager = KVCacheManager(kv_config(6, 4))
    request = make_request("a", [*PROMPT, *range(5)])
    admit(manager, request, 13)  # blocks 1 2 3 full, 4 not
    manager.free(request)
    order = [block.block_id for block in manager.block_pool.free_block_queue]
    assert order == [4, 5, 3, 2, 1]
    manager.free(request)  # nothing is held any more, so nothing happens
    assert manager.block_pool.get_num_free_blocks() == 5


def test_what_will_not_be_computed_is_forgotten() -> None:
    manager = KVCacheManager(kv_config(10, 4))
    request = make_request("a", [*PROMPT, 1])
    admit(manager, request, 9)
    manager.forget_uncomputed(request, 6)
    assert manager.get_computed_blocks(make_request("b", [*PROMPT, 1]))[1] == 4
    manager.forget_uncomputed(make_request("never here", [1]), 0)


def test_without_caching_nothing_is_ever_found_and_a_chunked_prompt_holds_no_more_than_it_needs() -> None:
    manager = KVCacheManager(kv_config(10, 4), enable_caching=False)
    request = make_request("a", PROMPT + PROMPT)
    admit(manager, request, 4)
    for expected in (2, 3, 4):
        manager.allocate_slots(request, 4)
        request.num_computed_tokens += 4
        assert len(manager.req_to_blocks["a"]) == expected
    assert manager.block_pool.cached_block_hash_to_block == {}
    manager.free(request)
    assert admit(manager, make_request("b", PROMPT + PROMPT), 16) == [4, 3, 2, 1]  # the last freed is the first used


def test_statistics_since_the_last_report_with_preempted_ones_apart() -> None:
    manager = KVCacheManager(kv_config(10, 4))
    assert manager.make_prefix_cache_stats() is None
    manager.record_look_up(make_request("a", PROMPT), 4)
    resumed = make_request("b", [1, 2, 3])
    resumed.num_preemptions = 1
    manager.record_look_up(resumed, 0)
    assert manager.make_prefix_cache_stats() == PrefixCacheStats(1, 8, 4, 1, 3, 0)
    assert manager.make_prefix_cache_stats() is None


def test_reset_is_refused_while_blocks_are_held() -> None:
    manager = KVCacheManager(kv_config(10, 4))
    request = make_request("a", [*PROMPT, 1])
    admit(manager, request, 9)
    assert not manager.reset_prefix_cache()
    manager.free(request)
    assert manager.reset_prefix_cache()
    assert manager.get_computed_blocks(make_request("b", [*PROMPT, 1]))[1] == 0
