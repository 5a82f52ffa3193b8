"""The worker's own book of its requests: one row each, columns in numpy, so that a step's inputs are a few array operations.

Process: worker. Knows: tokens, positions, block tables and sampling columns of the requests it was given. Does not know:
tensors or the device. A request keeps its row while it runs; a step picks rows by index, in whatever order.
Mirrors: vllm/v1/worker/gpu_input_batch.py, vllm/v1/worker/block_table.py
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vllm_lite.pooling_params import PoolingParams
from vllm_lite.wire.step import NewRequestData, SchedulerOutput
from vllm_lite.worker.attention.metadata import AttentionMetadata, Ints
from vllm_lite.worker.sampling_columns import SamplingColumns


@dataclass(slots=True)
class StepBatch:
    """What one step computes: B requests (those with one token first), T tokens.

    `rows` [B] in the InputBatch; `first_positions` [B] of each request's tokens; `token_ids` and `positions` [T]; `samples`
    [B]: does the request reach the end of its known tokens, so that the next one is to be chosen (never for embeddings).
    """

    req_ids: list[str]
    rows: Ints
    first_positions: Ints
    token_ids: Ints
    positions: Ints
    samples: npt.NDArray[np.bool_]
    attention: AttentionMetadata


class InputBatch:
    """Rows for at most `max_num_seqs` requests of at most `max_model_len` tokens."""

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int, vocab_size: int, seed: int) -> None:
        self._block_size = block_size
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(max_num_seqs))[::-1]
        # One column to spare: the token sampled at the limit is written, though never computed. Untouched pages cost nothing.
        self.token_ids = np.zeros((max_num_seqs, max_model_len + 1), np.int32)
        self.num_tokens = np.zeros(max_num_seqs, np.int64)  # known: prompt and answer so far
        self.num_prompt_tokens = np.zeros(max_num_seqs, np.int64)
        self._num_computed = np.zeros(max_num_seqs, np.int64)
        self._num_blocks = np.zeros(max_num_seqs, np.int64)
        self._block_table = np.zeros((max_num_seqs, -(-max_model_len // block_size)), np.int64)
        self.sampling = SamplingColumns(max_num_seqs, vocab_size)
        self.pooling: dict[int, PoolingParams] = {}  # rows whose requests want a vector instead of tokens
        self._seeds: dict[str, int] = {}
        self._random = np.random.default_rng(seed)

    def update(self, plan: SchedulerOutput) -> None:
        """Bring the rows up to date: who left, who goes on and with which new blocks, who is new."""
        for req_id in plan.finished_req_ids:
            self._seeds.pop(req_id, None)
            self._remove(req_id)
        for req_id in plan.preempted_req_ids:
            self._remove(req_id)
        cached = plan.scheduled_cached_reqs
        rows = [self._row_of[req_id] for req_id in cached.req_ids]
        self._num_computed[rows] = cached.num_computed_tokens
        for row, new_blocks in zip(rows, cached.new_block_ids, strict=True):
            if new_blocks is not None:
                self._append_blocks(row, new_blocks[0])
        for new in plan.scheduled_new_reqs:
            self._add(new)

    def step(self, num_scheduled_tokens: dict[str, int]) -> StepBatch:
        """Lay out the tokens of one step, requests with one token before the others (else in the given order)."""
        req_ids = list(num_scheduled_tokens)
        counts = np.fromiter(num_scheduled_tokens.values(), np.int64, len(req_ids))
        several = counts > 1
        num_decodes = len(req_ids) - int(several.sum())
        if several[:num_decodes].any():
            order = np.argsort(several, kind="stable")
            req_ids, counts = [req_ids[i] for i in order], counts[order]
        rows = np.fromiter((self._row_of[req_id] for req_id in req_ids), np.int64, len(req_ids))
        first = self._num_computed[rows]
        ends = first + counts
        starts = np.concatenate([[0], counts.cumsum()])
        positions = np.arange(starts[-1]) + np.repeat(first - starts[:-1], counts)
        row_of_token = np.repeat(rows, counts)
        blocks = self._block_table[row_of_token, positions // self._block_size]
        attention = AttentionMetadata(
            block_size=self._block_size,
            num_decodes=num_decodes,
            query_start_loc=starts,
            seq_lens=ends,
            block_table=self._block_table[rows, : -(-int(ends.max()) // self._block_size)],
            slot_mapping=blocks * self._block_size + positions % self._block_size,
        )
        token_ids = self.token_ids[row_of_token, positions].astype(np.int64)
        samples = ends >= self.num_tokens[rows]
        if self.pooling:
            samples &= ~np.isin(rows, list(self.pooling))
        return StepBatch(req_ids, rows, first, token_ids, positions, samples, attention)

    def append(self, rows: Ints, token_ids: Ints) -> None:
        """Note one sampled token for each of `rows`."""
        self.token_ids[rows, self.num_tokens[rows]] = token_ids
        self.num_tokens[rows] += 1

    def _add(self, new: NewRequestData) -> None:
        row = self._row_of[new.req_id] = self._free_rows.pop()
        count = len(new.prefill_token_ids)
        self.token_ids[row, :count] = new.prefill_token_ids
        self.num_tokens[row] = count
        self.num_prompt_tokens[row] = new.num_prompt_tokens
        self._num_computed[row] = new.num_computed_tokens
        self._num_blocks[row] = 0
        self._append_blocks(row, new.block_ids[0])
        if new.pooling_params is not None:
            self.pooling[row] = new.pooling_params
            return
        assert new.sampling_params is not None
        seed = new.sampling_params.seed
        if seed is None:  # drawn once and kept over preemptions, so that scheduling changes no token
            seed = self._seeds.setdefault(new.req_id, int(self._random.integers(2**63)))
        self.sampling.set(row, new.sampling_params, seed)

    def _append_blocks(self, row: int, block_ids: list[int]) -> None:
        start = self._num_blocks[row]
        self._block_table[row, start : start + len(block_ids)] = block_ids
        self._num_blocks[row] += len(block_ids)

    def _remove(self, req_id: str) -> None:
        """Free the row; a request that never reached the worker, or was preempted before it finished, has none."""
        row = self._row_of.pop(req_id, None)
        if row is not None:
            self.sampling.clear(row)
            self.pooling.pop(row, None)
            self._free_rows.append(row)
