"""From logits to tokens, for all requests of a step at once.

Process: worker. Knows: logits, the rows' sampling columns and tokens so far. Does not know: the model, the scheduler.
Order, as in vLLM: log probabilities of the raw logits, allowed ids, bad words, min_tokens, bias, penalties; then the most
likely token, or temperature, min-p, top-k, top-p and a draw. A draw needs one number made of the request's seed and position,
so neither the batch nor the device's generator has a say in it.
Mirrors: vllm/v1/sample/sampler.py, vllm/v1/sample/ops/topk_topp_sampler.py
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from vllm_lite.worker.attention.metadata import Ints
from vllm_lite.worker.input_batch import InputBatch
from vllm_lite.worker.logit_edits import apply_edits, apply_penalties
from vllm_lite.worker.sampling_columns import EDITED, FILTERED, LOGPROBS, PENALISED, RANDOM, SamplingColumns
from vllm_lite.worker.step_buffer import upload

NO_TOKEN = -1  # every logit of the row is -inf, or one is not a number


class SamplerOutput(NamedTuple):
    """`token_ids` int64 [n] on the device, NO_TOKEN where none can be chosen. `logprobs` [m, V], in float32 at least, of the
    rows `logprob_rows` (indices into the n) that asked for them; None where none did."""

    token_ids: torch.Tensor
    logprobs: torch.Tensor | None
    logprob_rows: Ints


def sample(logits: torch.Tensor, rows: Ints, batch: InputBatch) -> SamplerOutput:
    """The next token of each of `rows` [n] of `batch`, from `logits` [n, V], which may be changed in place."""
    columns = batch.sampling
    features = columns.features[rows]
    wanted = int(np.bitwise_or.reduce(features))
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logprobs, logprob_rows = None, np.flatnonzero(features & LOGPROBS)
    if wanted & LOGPROBS:
        logprobs = logits[upload(logprob_rows, logits.device)].log_softmax(-1)
    if wanted & EDITED:
        apply_edits(logits, rows, np.flatnonzero(features & EDITED), batch)
    if wanted & PENALISED:
        apply_penalties(logits, rows, np.flatnonzero(features & PENALISED), batch)
    token_ids = _most_likely(logits)
    if wanted & RANDOM:
        drawn = np.flatnonzero(features & RANDOM)
        own = upload(drawn, logits.device)
        uniforms = columns.uniforms(rows[drawn], batch.num_tokens[rows[drawn]])
        token_ids[own] = _draw(logits[own], rows[drawn], columns, uniforms)
    return SamplerOutput(token_ids, logprobs, logprob_rows)


def _draw(logits: torch.Tensor, rows: Ints, columns: SamplingColumns, uniforms: npt.NDArray[np.float64]) -> torch.Tensor:
    """A token for each row, by the inverse of its cumulative distribution: the first whose sum exceeds the uniform."""
    scaled = logits.div_(_column(columns.temperature[rows], logits))
    filtered = np.flatnonzero(columns.features[rows] & FILTERED)
    if len(filtered):
        own = upload(filtered, logits.device)
        candidates = scaled[own]
        floor = _floor(candidates, rows[filtered], columns)
        scaled[own] = candidates.masked_fill_(candidates < floor, -torch.inf)
    weights = scaled.sub_(scaled.amax(-1, keepdim=True)).exp_()
    sums = weights.cumsum(-1, dtype=torch.float64)
    total = sums[:, -1:]
    token_ids = torch.searchsorted(sums, total * _column(uniforms, logits), right=True)[:, 0]
    return torch.where(total[:, 0].isfinite(), token_ids, NO_TOKEN)


def _floor(scaled: torch.Tensor, rows: Ints, columns: SamplingColumns) -> torch.Tensor:
    """The least logit [n, 1] that min-p, then top-k, then top-p leave to each row; equals at the edge all stay."""
    ordered = _descending(scaled)
    peak = ordered[:, :1]
    floor = ordered.gather(1, _column(columns.top_k[rows] - 1, scaled))
    floor = torch.maximum(floor, peak + _column(columns.min_p[rows], scaled).log().to(peak.dtype))
    top_p = columns.top_p[rows]
    if (top_p < 1).any():
        weights = (ordered - peak).exp_().masked_fill_(ordered < floor, 0)
        sums = weights.cumsum(-1, dtype=torch.float64)
        share = _column(top_p.astype(np.float64), scaled)
        last = torch.searchsorted(sums, sums[:, -1:] * share).clamp_(max=scaled.shape[1] - 1)
        floor = torch.where(share < 1, torch.maximum(floor, ordered.gather(1, last)), floor)
    return floor


def _column(array: npt.NDArray[np.generic], like: torch.Tensor) -> torch.Tensor:
    return upload(array, like.device)[:, None]


def _most_likely(logits: torch.Tensor) -> torch.Tensor:
    """The first of the highest logits of each row, NO_TOKEN where it is not finite."""
    if logits.device.type == "cpu":  # numpy uses vector instructions here; torch takes ten times as long
        array = logits.numpy()
        token_ids = array.argmax(-1)
        best = array[np.arange(len(array)), token_ids]
        return torch.from_numpy(np.where(np.isfinite(best), token_ids, NO_TOKEN))
    best_logits, indices = logits.max(-1)
    return torch.where(best_logits.isfinite(), indices, NO_TOKEN)


def _descending(logits: torch.Tensor) -> torch.Tensor:
    """Each row sorted, the highest first."""
    if logits.device.type == "cpu":  # thirty times as fast as torch.sort, for the same reason
        return torch.from_numpy(np.sort(logits.numpy(), axis=-1)[:, ::-1].copy())
    return logits.sort(-1, descending=True).values
