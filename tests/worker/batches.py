"""Input batches for tests of what works on rows, filled without a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.step import CachedRequestData, NewRequestData, SchedulerOutput
from vllm_lite.worker.input_batch import InputBatch

VOCAB = 16


def new_request(
    name: str, prompt: Sequence[int], params: SamplingParams, answer: Sequence[int] = (), **options: int
) -> NewRequestData:
    """A request as if resumed with `answer`. `options`: num_blocks, first_block, num_computed_tokens."""
    first = options.get("first_block", 1)
    blocks = list(range(first, first + options.get("num_blocks", 1)))
    return NewRequestData(name, [*prompt, *answer], len(prompt), params, None, [blocks], options.get("num_computed_tokens", 0))


def plan(*new: NewRequestData, cached: CachedRequestData | None = None, **columns: list[str]) -> SchedulerOutput:
    """A SchedulerOutput that only brings news; `columns`: finished_req_ids, preempted_req_ids."""
    return SchedulerOutput(0, list(new), cached or CachedRequestData(), {}, 0, **columns)


def make_batch(*requests: NewRequestData, max_num_seqs: int | None = None) -> tuple[InputBatch, np.ndarray]:
    """A batch that holds `requests`, and their rows in order."""
    batch = InputBatch(max_num_seqs or len(requests), max_model_len=64, block_size=4, vocab_size=VOCAB, seed=0)
    batch.update(plan(*requests))
    rows = [batch._row_of[request.req_id] for request in requests]
    return batch, np.array(rows, np.int64)
