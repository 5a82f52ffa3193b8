"""Sampling parameters of all rows, as columns: what every request has in arrays, what few have in dictionaries by row.

Process: worker. Knows: SamplingParams. Does not know: logits. `features` says in one byte what a row needs beyond the most
likely token, so that a step asks once for all its rows and skips what none of them wants.
Mirrors: vllm/v1/sample/metadata.py, vllm/v1/worker/gpu_input_batch.py (its sampling half)
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vllm_lite.sampling_params import SamplingParams

# Bits of `features`.
RANDOM = 1  # temperature above 0
FILTERED = 2  # top-k, top-p or min-p narrow the choice
PENALISED = 4
EDITED = 8  # logit_bias, allowed_token_ids, bad_words or min_tokens
LOGPROBS = 16
PROMPT_LOGPROBS = 32

_MOST = float(np.finfo(np.float32).max)
_MIX_1, _MIX_2, _STEP = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0x9E3779B97F4A7C15)


class Edits(NamedTuple):
    """The rarer wishes of one row. Ids int64; `stop_ids` may not be sampled before `min_tokens` answer tokens."""

    bias_ids: npt.NDArray[np.int64]
    biases: npt.NDArray[np.float32]
    allowed_ids: npt.NDArray[np.int64] | None
    bad_words: list[list[int]]
    stop_ids: npt.NDArray[np.int64]
    min_tokens: int


class SamplingColumns:
    """One entry for each row; see SamplingParams for meanings. `top_k` is the vocabulary's size where it is off."""

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.features = np.zeros(num_rows, np.uint8)
        self.temperature = np.ones(num_rows, np.float32)
        self.top_k = np.zeros(num_rows, np.int64)
        self.top_p = np.ones(num_rows, np.float32)
        self.min_p = np.zeros(num_rows, np.float32)
        self.presence_penalty = np.zeros(num_rows, np.float32)
        self.frequency_penalty = np.zeros(num_rows, np.float32)
        self.repetition_penalty = np.ones(num_rows, np.float32)
        self.num_logprobs = np.zeros(num_rows, np.int64)
        self.num_prompt_logprobs = np.zeros(num_rows, np.int64)
        self._seed = np.zeros(num_rows, np.uint64)
        self.edits: dict[int, Edits] = {}

    def set(self, row: int, params: SamplingParams, seed: int) -> None:
        """Fill a row. `seed` stands for the request's own randomness, given or drawn."""
        vocab = self._vocab_size
        self.temperature[row] = min(params.temperature, _MOST)
        self.top_k[row] = min(params.top_k or vocab, vocab)
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.presence_penalty[row] = params.presence_penalty
        self.frequency_penalty[row] = params.frequency_penalty
        self.repetition_penalty[row] = min(params.repetition_penalty, _MOST)
        self.num_logprobs[row] = _num_candidates(params.logprobs, vocab)
        self.num_prompt_logprobs[row] = _num_candidates(params.prompt_logprobs, vocab)
        self._seed[row : row + 1] = _mix(np.array([seed % 2**64], np.uint64))
        stops = params.all_stop_token_ids if params.min_tokens > 0 else set()
        self.features[row] = (
            RANDOM * (not params.greedy)
            | FILTERED * (self.top_k[row] < vocab or params.top_p < 1 or params.min_p > 0)
            | PENALISED * (params.presence_penalty != 0 or params.frequency_penalty != 0 or params.repetition_penalty != 1)
            | EDITED * bool(params.logit_bias or params.allowed_token_ids or params.bad_words_token_ids or stops)
            | LOGPROBS * (params.logprobs is not None)
            | PROMPT_LOGPROBS * (params.prompt_logprobs is not None)
        )
        if self.features[row] & EDITED:
            bias = params.logit_bias or {}
            self.edits[row] = Edits(
                bias_ids=np.fromiter(bias, np.int64, len(bias)),
                biases=np.fromiter(bias.values(), np.float32, len(bias)),
                allowed_ids=np.array(params.allowed_token_ids, np.int64) if params.allowed_token_ids else None,
                bad_words=params.bad_words_token_ids or [],
                stop_ids=np.fromiter(stops, np.int64, len(stops)),
                min_tokens=params.min_tokens,
            )

    def clear(self, row: int) -> None:
        """Forget a row."""
        self.features[row] = 0
        self.edits.pop(row, None)

    def uniforms(self, rows: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """One number in [0, 1) for each row, made of nothing but its seed and the position of the token to be chosen."""
        bits = _mix(self._seed[rows] + (positions.astype(np.uint64) + np.uint64(1)) * _STEP)
        return (bits >> np.uint64(12)).astype(np.float64) * 2.0**-52


def _num_candidates(asked: int | None, vocab: int) -> int:
    return vocab if asked == -1 else min(asked or 0, vocab)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The output function of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))
