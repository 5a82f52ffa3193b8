"""Log probabilities as they travel: few candidates per position, the token itself first.

Process: worker. Knows: log probabilities over the vocabulary, and which tokens were sampled or stood in a prompt. Does not
know: the sampler or the model.
Mirrors: vllm/v1/sample/ops/logprobs.py, vllm/v1/worker/gpu_model_runner.py (_get_prompt_logprobs_dict)
"""

from dataclasses import dataclass

import numpy as np
import torch

from vllm_lite.wire.step import LogprobsLists
from vllm_lite.worker.attention.metadata import Ints
from vllm_lite.worker.input_batch import InputBatch, StepBatch
from vllm_lite.worker.sampling_columns import PROMPT_LOGPROBS

ROWS_AT_ONCE = 256  # a long prompt's logits in float32 would be many times the model


def gather_logprobs(logprobs: torch.Tensor, token_ids: Ints, num_candidates: int) -> LogprobsLists:
    """Of `logprobs` [n, V]: `token_ids` [n] first, then the `num_candidates` most likely, best first; see LogprobsLists.

    A rank is one more than the number of strictly likelier tokens.
    """
    index = torch.from_numpy(token_ids).to(logprobs.device)[:, None]
    own = logprobs.gather(1, index)
    ranks = (logprobs > own).sum(-1) + 1
    values, ids = own, index
    if num_candidates:
        best = logprobs.topk(num_candidates, dim=-1)
        values, ids = torch.cat([own, best.values], dim=1), torch.cat([index, best.indices], dim=1)
    return LogprobsLists(
        ids.cpu().numpy().astype(np.int32),
        values.cpu().numpy().astype(np.float32),
        ranks.cpu().numpy().astype(np.int32),
    )


def row_of(lists: LogprobsLists, row: int, num_candidates: int) -> LogprobsLists:
    """One position of `lists` with its own number of candidates, as arrays of their own."""
    width = num_candidates + 1
    return LogprobsLists(
        lists.logprob_token_ids[row : row + 1, :width].copy(),
        lists.logprobs[row : row + 1, :width].copy(),
        lists.sampled_token_ranks[row : row + 1].copy(),
    )


@dataclass(slots=True)
class PromptPart:
    """A stretch of a prompt computed in this step: request `index` of the step, `count` rows of the flat batch from `start`,
    predicting the prompt's tokens from position `first` on."""

    index: int
    start: int
    count: int
    first: int


def prompt_parts(step: StepBatch, batch: InputBatch) -> list[PromptPart]:
    """Whose prompt tokens this step predicts for a request that asked. One whose answer has begun has had them already."""
    parts = []
    for index in np.flatnonzero(batch.sampling.features[step.rows] & PROMPT_LOGPROBS).tolist():
        row, first = step.rows[index], int(step.first_positions[index]) + 1
        if batch.num_tokens[row] > batch.num_prompt_tokens[row]:
            continue
        end = min(int(step.attention.seq_lens[index]) + 1, int(batch.num_prompt_tokens[row]))
        if end > first:
            parts.append(PromptPart(index, int(step.attention.query_start_loc[index]), end - first, first))
    return parts


def prompt_logprobs(
    logits: torch.Tensor, parts: list[PromptPart], step: StepBatch, batch: InputBatch
) -> dict[str, LogprobsLists]:
    """Log probabilities of this step's prompt tokens by request id; `logits` holds the parts' rows one after the other."""
    found, offset = {}, 0
    for part in parts:
        row = step.rows[part.index]
        pieces = []
        for start in range(0, part.count, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, part.count - start)
            rows = logits[offset + start : offset + start + count]
            scores = rows.log_softmax(-1, dtype=torch.promote_types(rows.dtype, torch.float32))
            tokens = batch.token_ids[row, part.first + start : part.first + start + count].astype(np.int64)
            pieces.append(gather_logprobs(scores, tokens, int(batch.sampling.num_prompt_logprobs[row])))
        offset += part.count
        found[step.req_ids[part.index]] = LogprobsLists(
            np.concatenate([piece.logprob_token_ids for piece in pieces]),
            np.concatenate([piece.logprobs for piece in pieces]),
            np.concatenate([piece.sampled_token_ranks for piece in pieces]),
        )
    return found
