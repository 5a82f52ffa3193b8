"""A request's own state: tokens, hashes, milestones, ends."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine_core.harness import make_request
from vllm_lite.engine_core.kv_cache_utils import get_request_block_hasher
from vllm_lite.engine_core.request import Request, RequestStatus
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.messages import EngineCoreRequest, FinishReason
from vllm_lite.wire.step import LogprobsLists


def test_a_letter_becomes_a_request_with_everything_in_its_place() -> None:
    letter = EngineCoreRequest(
        "r", [1, 2, 3, 4, 5], None, SamplingParams(max_tokens=7), None, 2.5, cache_salt="s", client_index=3, priority=-1
    )
    request = Request.from_engine_core_request(letter, get_request_block_hasher(2))
    assert (request.request_id, request.client_index, request.cache_salt) == ("r", 3, "s")
    assert request.sort_key == (-1, 2.5, "r")
    assert (request.num_tokens, request.num_prompt_tokens, request.num_output_tokens, request.max_tokens) == (5, 5, 0, 7)
    assert len(request.block_hashes) == 2
    request.append_output_token_ids(9)
    assert letter.prompt_token_ids == [1, 2, 3, 4, 5]  # the letter's list is its own
    assert request.all_token_ids == [1, 2, 3, 4, 5, 9]


def test_output_tokens_are_those_after_the_prompt() -> None:
    request = make_request("r", [1, 2, 3])
    request.append_output_token_ids(9)
    request.append_output_token_ids(8)
    assert request.all_token_ids[-2:] == [9, 8]
    assert request.num_output_tokens == 2
    assert request.num_tokens == 5


def test_block_hashes_follow_the_tokens_when_asked_to() -> None:
    request = make_request("r", [1, 2, 3], block_size=2)
    assert len(request.block_hashes) == 1
    request.append_output_token_ids(4)
    request.update_block_hashes()
    request.update_block_hashes()
    assert request.block_hashes == make_request("other", [1, 2, 3, 4], block_size=2).block_hashes


def test_without_a_hasher_there_are_no_hashes() -> None:
    request = Request("r", [1, 2, 3, 4], SamplingParams(), None)
    request.update_block_hashes()
    assert request.block_hashes == []


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (RequestStatus.WAITING, None),
        (RequestStatus.RUNNING, None),
        (RequestStatus.PREEMPTED, None),
        (RequestStatus.FINISHED_STOPPED, FinishReason.STOP),
        (RequestStatus.FINISHED_LENGTH_CAPPED, FinishReason.LENGTH),
        (RequestStatus.FINISHED_ABORTED, FinishReason.ABORT),
        (RequestStatus.FINISHED_ERROR, FinishReason.ERROR),
    ],
)
def test_each_end_has_its_reason(status: RequestStatus, reason: FinishReason | None) -> None:
    request = make_request("r", [1])
    request.status = status
    assert request.get_finished_reason() == reason
    assert request.is_finished() is (reason is not None)


def test_max_tokens_is_one_for_pooling_and_without_limit_where_absent() -> None:
    assert make_request("p", [1], pooling=PoolingParams()).max_tokens == 1
    assert make_request("r", [1], SamplingParams(max_tokens=None)).max_tokens > 2**60


@pytest.mark.parametrize(
    ("params", "skips"),
    [
        (SamplingParams(), False),
        (SamplingParams(prompt_logprobs=0), True),
        (PoolingParams(pooling_type="last"), False),
        (PoolingParams(pooling_type="mean"), True),
        (PoolingParams(pooling_type="cls"), True),
    ],
)
def test_who_needs_every_position_does_not_read_the_prefix_cache(params: SamplingParams | PoolingParams, skips: bool) -> None:
    if isinstance(params, PoolingParams):
        assert make_request("r", [1], pooling=params).skip_reading_prefix_cache is skips
    else:
        assert make_request("r", [1], params).skip_reading_prefix_cache is skips


def chunk(*ids: int) -> LogprobsLists:
    column = np.array(ids, dtype=np.int32)
    return LogprobsLists(column[:, None], -column[:, None].astype(np.float32), column + 1)


def test_prompt_logprobs_of_all_chunks_are_delivered_once() -> None:
    request = make_request("r", [1], SamplingParams(prompt_logprobs=0))
    request.prompt_logprobs = [chunk(1, 2), chunk(3)]
    taken = request.take_prompt_logprobs()
    assert taken is not None
    assert taken.logprob_token_ids.tolist() == [[1], [2], [3]]
    assert taken.logprobs.tolist() == [[-1.0], [-2.0], [-3.0]]
    assert taken.sampled_token_ranks.tolist() == [2, 3, 4]
    assert request.prompt_logprobs is None  # so that what is computed again after preemption is not kept
    assert request.take_prompt_logprobs() is None


def test_preemption_forgets_the_prompt_logprobs_that_will_be_computed_again() -> None:
    request = make_request("r", [1], SamplingParams(prompt_logprobs=0))
    request.num_computed_tokens = 5
    request.prompt_logprobs = [chunk(1, 2)]
    request.reset_computed_tokens()
    assert (request.num_computed_tokens, request.num_preemptions) == (0, 1)
    assert request.prompt_logprobs == []
