from __future__ import annotations

import numpy as np
import torch

from tests.worker.batches import make_batch, new_request, plan
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.step import CachedRequestData
from vllm_lite.worker.logprobs import PromptPart, gather_logprobs, prompt_logprobs, prompt_parts, row_of

LOGPROBS = torch.tensor([[-1.0, -3.0, -0.5, -3.0], [-2.0, -2.0, -4.0, -1.0]])


def test_the_token_comes_first_then_the_best() -> None:
    lists = gather_logprobs(LOGPROBS, np.array([1, 3]), num_candidates=2)
    assert lists.logprob_token_ids[:, :2].tolist() == [[1, 2], [3, 3]]
    assert lists.logprobs.tolist() == [[-3.0, -0.5, -1.0], [-1.0, -1.0, -2.0]]
    assert lists.sampled_token_ranks.tolist() == [3, 1]  # equals share the better rank
    types = (lists.logprob_token_ids.dtype, lists.logprobs.dtype, lists.sampled_token_ranks.dtype)
    assert types == (np.int32, np.float32, np.int32)


def test_without_candidates_the_token_stands_alone() -> None:
    lists = gather_logprobs(LOGPROBS, np.array([0, 0]), num_candidates=0)
    assert (lists.logprob_token_ids.tolist(), lists.logprobs.tolist()) == ([[0], [0]], [[-1.0], [-2.0]])


def test_a_row_keeps_only_its_own_candidates() -> None:
    lists = gather_logprobs(LOGPROBS, np.array([1, 3]), num_candidates=2)
    row = row_of(lists, 1, num_candidates=1)
    assert (row.logprob_token_ids.tolist(), row.logprobs.tolist()) == ([[3, 3]], [[-1.0, -1.0]])
    assert row.sampled_token_ranks.tolist() == [1]
    assert row.logprobs.base is None  # of its own, so the step's arrays need not live on


def test_parts_follow_the_chunks_of_a_prompt() -> None:
    wants, not_wants = SamplingParams(prompt_logprobs=1), SamplingParams()
    requests = [new_request("plain", [1, 2], not_wants), new_request("asked", [5, 6, 7, 8, 9], wants, num_blocks=2)]
    batch, _ = make_batch(*requests)
    step = batch.step({"plain": 2, "asked": 3})
    assert prompt_parts(step, batch) == [PromptPart(index=1, start=2, count=3, first=1)]
    batch.update(plan(cached=CachedRequestData(["asked"], [None], [3], [0])))
    step = batch.step({"asked": 2})
    parts = prompt_parts(step, batch)
    assert parts == [PromptPart(index=0, start=0, count=1, first=4)]  # the last token predicts the answer
    found = prompt_logprobs(torch.zeros(1, 16), parts, step, batch)
    assert found["asked"].logprob_token_ids[0, 0] == 9
    np.testing.assert_allclose(found["asked"].logprobs[0], np.log(1 / 16), rtol=1e-6)


def test_the_last_prompt_token_alone_and_a_resumed_request_have_no_part() -> None:
    params = SamplingParams(prompt_logprobs=1)
    batch, _ = make_batch(
        new_request("last", [1, 2, 3], params, num_computed_tokens=2), new_request("resumed", [1, 2], params, answer=[3])
    )
    assert prompt_parts(batch.step({"last": 1, "resumed": 3}), batch) == []
