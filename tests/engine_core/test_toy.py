"""The toy: its answer through any blocks is the plain answer, and a fault in the blocks shows."""

import numpy as np
import pytest

from vllm_lite.config import CacheConfig, ModelConfig, VllmConfig
from vllm_lite.engine_core.executor.abstract import Executor
from vllm_lite.engine_core.executor.toy import FIRST_TOKEN, NUM_TOKENS, ToyExecutor, expected_tokens
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from vllm_lite.wire.step import CachedRequestData, ModelRunnerOutput, NewRequestData, SchedulerOutput

BLOCK_SIZE = 4
PROMPT = [104, 101, 108, 108, 111, 33]


def make_toy(num_blocks: int = 10, **settings: object) -> ToyExecutor:
    config = VllmConfig(ModelConfig("toy"), CacheConfig(block_size=BLOCK_SIZE), additional_config=settings)
    config.parallel_config.distributed_executor_backend = "toy"
    executor_class = Executor.get_class(config)
    assert executor_class is ToyExecutor
    toy = ToyExecutor(config)
    specs = toy.get_kv_cache_specs()
    toy.initialize_from_config(KVCacheConfig(num_blocks, specs, [KVCacheGroupSpec(["toy"], specs["toy"])]))
    return toy


def run(toy: ToyExecutor, step: SchedulerOutput) -> ModelRunnerOutput:
    return toy.execute_model(step).result() or toy.sample_tokens().result()


def first_step(
    prompt: list[int], block_ids: list[int], count: int, params: SamplingParams | PoolingParams | None = None, computed: int = 0
) -> SchedulerOutput:
    sampling = params if isinstance(params, SamplingParams) else None
    pooling = params if isinstance(params, PoolingParams) else None
    new = NewRequestData("r", prompt, len(prompt), sampling, pooling, [block_ids], computed)
    return SchedulerOutput(0, [new], CachedRequestData(), {"r": count}, count)


def next_step(
    step: int, computed: int, count: int, new_blocks: list[int] | None = None, num_output: int = 0
) -> SchedulerOutput:
    blocks = None if new_blocks is None else [new_blocks]
    return SchedulerOutput(step, [], CachedRequestData(["r"], [blocks], [computed], [num_output]), {"r": count}, count)


def test_tokens_through_scattered_blocks_are_the_plain_answer() -> None:
    toy = make_toy()
    tokens = run(toy, first_step(PROMPT, [7, 2], 6)).sampled_token_ids[0]
    tokens += run(toy, next_step(1, 6, 1)).sampled_token_ids[0]
    tokens += run(toy, next_step(2, 7, 1)).sampled_token_ids[0]
    tokens += run(toy, next_step(3, 8, 1, [5])).sampled_token_ids[0]
    assert tokens == expected_tokens(PROMPT, 4)
    assert all(FIRST_TOKEN <= t < FIRST_TOKEN + NUM_TOKENS for t in expected_tokens(PROMPT, 200))


def test_a_chunk_before_the_end_of_the_prompt_yields_an_empty_row() -> None:
    toy = make_toy()
    assert run(toy, first_step(PROMPT, [1, 2], 4)).sampled_token_ids == [[]]
    assert run(toy, next_step(1, 4, 2)).sampled_token_ids == [expected_tokens(PROMPT, 1)]


def test_a_block_that_was_never_written_shows_as_wrong_tokens() -> None:
    toy = make_toy()
    assert run(toy, first_step(PROMPT, [7, 2], 2, computed=4)).sampled_token_ids[0] != expected_tokens(PROMPT, 1)


def test_scheduling_past_the_known_tokens_fails() -> None:
    with pytest.raises(AssertionError, match="scheduled to 7 of 6"):
        run(make_toy(), first_step(PROMPT, [7, 2], 7))


def test_finished_and_preempted_requests_are_forgotten_before_new_ones_come() -> None:
    toy = make_toy()
    run(toy, first_step(PROMPT, [1, 2], 6))
    again = first_step([*PROMPT, 50], [3, 4], 7)
    again.preempted_req_ids = ["r", "never seen"]
    assert run(toy, again).sampled_token_ids == [expected_tokens([*PROMPT, 50], 1)]
    assert run(toy, SchedulerOutput(2, [], CachedRequestData(), {}, 0, ["r"])) == ModelRunnerOutput([], [])
    assert toy.worker._requests == {}


def test_seed_and_min_tokens_change_the_answer() -> None:
    plain = expected_tokens(PROMPT, 3)
    assert expected_tokens(PROMPT, 3, SamplingParams(seed=1)) != plain
    stop_on_first = SamplingParams(min_tokens=1, stop_token_ids=[plain[0]], all_stop_token_ids={plain[0]})
    assert expected_tokens(PROMPT, 1, stop_on_first)[0] != plain[0]
    params = SamplingParams(seed=5)
    assert run(make_toy(), first_step(PROMPT, [7, 2], 6, params)).sampled_token_ids[0] == expected_tokens(PROMPT, 1, params)


def test_logprobs_have_the_sampled_token_first() -> None:
    output = run(make_toy(), first_step(PROMPT, [7, 2], 6, SamplingParams(logprobs=2)))
    assert output.logprobs is not None
    assert output.logprobs[0] is not None
    token = expected_tokens(PROMPT, 1)[0]
    assert output.logprobs[0].logprob_token_ids.shape == (1, 3)
    assert output.logprobs[0].logprob_token_ids[0, :2].tolist() == [token, token]
    assert output.logprobs[0].sampled_token_ranks.tolist() == [1]
    assert run(make_toy(), first_step(PROMPT, [7, 2], 6)).logprobs == [None]


def test_pooling_answers_with_a_unit_vector_and_no_token() -> None:
    output = run(make_toy(), first_step(PROMPT, [7, 2], 6, PoolingParams()))
    assert output.sampled_token_ids == [[]]
    assert output.pooler_output is not None
    assert np.linalg.norm(output.pooler_output[0]) == pytest.approx(1.0)


def test_told_to_fail_it_fails_one_request_or_one_step() -> None:
    assert run(make_toy(toy_error_token=33), first_step(PROMPT, [1, 2], 6)).errors == {
        "r": "the toy was told to fail on token 33"
    }
    with pytest.raises(RuntimeError, match="crash at step 0"):
        run(make_toy(toy_crash_at_step=0), first_step(PROMPT, [1, 2], 6))


def test_calls_return_done_futures_that_hold_the_error() -> None:
    toy = make_toy(toy_crash_at_step=1)
    future = toy.execute_model(first_step(PROMPT, [1, 2], 6))
    assert future.result() is None
    assert toy.sample_tokens().result().sampled_token_ids == [expected_tokens(PROMPT, 1)]
    failed = toy.execute_model(next_step(1, 6, 1))
    with pytest.raises(RuntimeError, match="crash"):
        failed.result()


def test_collective_rpc_reaches_the_worker() -> None:
    toy = make_toy()
    assert toy.collective_rpc("sleep_for", args=(0.0,)) == [0]
    assert toy.worker_info()["attention_backend"] == "toy"
    toy.shutdown()
