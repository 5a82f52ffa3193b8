from __future__ import annotations

import numpy as np
import pytest

from tests.worker.batches import make_batch, new_request, plan
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.step import CachedRequestData
from vllm_lite.worker.input_batch import InputBatch

GREEDY = SamplingParams(temperature=0.0)


def test_a_step_lays_tokens_side_by_side() -> None:
    batch, rows = make_batch(
        new_request("a", [10, 11, 12, 13, 14, 15], GREEDY, num_blocks=2, first_block=3),
        new_request("b", [20, 21, 22, 23, 24], GREEDY, num_blocks=2, first_block=7, num_computed_tokens=3),
    )
    step = batch.step({"a": 5, "b": 2})
    assert step.req_ids == ["a", "b"]
    assert step.rows.tolist() == rows.tolist()
    assert step.token_ids.tolist() == [10, 11, 12, 13, 14, 23, 24]
    assert step.positions.tolist() == [0, 1, 2, 3, 4, 3, 4]
    assert step.first_positions.tolist() == [0, 3]
    assert step.samples.tolist() == [False, True]
    meta = step.attention
    assert meta.query_start_loc.tolist() == [0, 5, 7]
    assert meta.seq_lens.tolist() == [5, 5]
    assert meta.slot_mapping.tolist() == [12, 13, 14, 15, 16, 31, 32]
    assert meta.block_table.tolist() == [[3, 4], [7, 8]]
    assert meta.num_decodes == 0


def test_requests_with_one_token_come_first_and_the_others_keep_their_order() -> None:
    batch, _ = make_batch(*(new_request(name, [1, 2, 3], GREEDY) for name in "abcd"))
    step = batch.step({"a": 2, "b": 1, "c": 3, "d": 1})
    assert step.req_ids == ["b", "d", "a", "c"]
    assert step.attention.num_decodes == 2
    assert step.attention.query_start_loc.tolist() == [0, 1, 2, 4, 7]
    assert batch.step({"b": 1, "d": 1, "a": 2}).req_ids == ["b", "d", "a"]


def test_sampled_tokens_are_the_next_steps_input() -> None:
    batch, rows = make_batch(new_request("a", [1, 2], GREEDY), new_request("b", [3], GREEDY))
    batch.append(rows, np.array([8, 9]))
    batch.update(plan(cached=CachedRequestData(["a", "b"], [None, None], [2, 1], [1, 1])))
    step = batch.step({"a": 1, "b": 1})
    assert step.token_ids.tolist() == [8, 9]
    assert step.positions.tolist() == [2, 1]
    assert step.samples.tolist() == [True, True]


def test_new_blocks_are_appended() -> None:
    batch, _ = make_batch(new_request("a", [1, 2, 3, 4], GREEDY, first_block=5))
    batch.append(np.array([0]), np.array([6]))
    batch.update(plan(cached=CachedRequestData(["a"], [[[9]]], [4], [1])))
    step = batch.step({"a": 1})
    assert step.attention.block_table.tolist() == [[5, 9]]
    assert step.attention.slot_mapping.tolist() == [36]


def test_a_row_is_free_again_once_its_request_is_gone() -> None:
    batch, _ = make_batch(new_request("a", [1], SamplingParams(seed=1, logit_bias={3: 1.0})), max_num_seqs=1)
    batch.update(plan(new_request("b", [2], GREEDY), finished_req_ids=["a"]))
    assert batch.step({"b": 1}).token_ids.tolist() == [2]
    assert (batch.sampling.features.tolist(), batch.sampling.edits) == ([0], {})
    batch.update(plan(finished_req_ids=["b", "never seen"], preempted_req_ids=["neither"]))
    with pytest.raises(KeyError):
        batch.step({"b": 1})


def test_a_preempted_request_may_come_back_within_the_same_step() -> None:
    batch, _ = make_batch(new_request("a", [1, 2], GREEDY), max_num_seqs=1)
    back = new_request("a", [1, 2], GREEDY, answer=[7], first_block=4)
    batch.update(plan(back, preempted_req_ids=["a"]))
    step = batch.step({"a": 3})
    assert step.token_ids.tolist() == [1, 2, 7]
    assert step.attention.slot_mapping.tolist() == [16, 17, 18]
    assert batch.num_prompt_tokens[step.rows].tolist() == [2]


def test_a_drawn_seed_survives_preemption_and_is_forgotten_at_the_end() -> None:
    def uniform(batch: InputBatch) -> float:
        return float(batch.sampling.uniforms(np.array([0]), np.array([5]))[0])

    request = new_request("a", [1], SamplingParams())
    batch, _ = make_batch(request)
    before = uniform(batch)
    batch.update(plan(request, preempted_req_ids=["a"]))
    assert uniform(batch) == before
    batch.update(plan(request, finished_req_ids=["a"]))
    assert uniform(batch) != before


def test_the_longest_request_fits_with_the_token_after_its_last() -> None:
    batch = InputBatch(1, max_model_len=5, block_size=4, vocab_size=16, seed=0)
    batch.update(plan(new_request("a", [1, 2, 3, 4, 5], GREEDY, num_blocks=2)))
    assert batch.step({"a": 5}).attention.block_table.tolist() == [[1, 2]]
    batch.append(np.array([0]), np.array([6]))
    assert batch.num_tokens.tolist() == [6]
