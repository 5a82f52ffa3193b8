from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vllm_lite.sampling_params import SamplingParams
from vllm_lite.worker.sampling_columns import (
    EDITED,
    FILTERED,
    LOGPROBS,
    PENALISED,
    PROMPT_LOGPROBS,
    RANDOM,
    SamplingColumns,
)


@pytest.mark.parametrize(
    ("options", "features"),
    [
        ({"temperature": 0.0}, 0),
        ({}, RANDOM),
        ({"top_k": 5}, RANDOM | FILTERED),
        ({"top_k": 100}, RANDOM),
        ({"top_p": 0.5}, RANDOM | FILTERED),
        ({"min_p": 0.1}, RANDOM | FILTERED),
        ({"presence_penalty": 1.0}, RANDOM | PENALISED),
        ({"frequency_penalty": -1.0}, RANDOM | PENALISED),
        ({"repetition_penalty": 1.5}, RANDOM | PENALISED),
        ({"logit_bias": {1: 2.0}}, RANDOM | EDITED),
        ({"allowed_token_ids": [3]}, RANDOM | EDITED),
        ({"bad_words_token_ids": [[3]]}, RANDOM | EDITED),
        ({"min_tokens": 2, "all_stop_token_ids": {7}}, RANDOM | EDITED),
        ({"min_tokens": 2}, RANDOM),
        ({"all_stop_token_ids": {7}}, RANDOM),
        ({"logprobs": 0}, RANDOM | LOGPROBS),
        ({"prompt_logprobs": 0}, RANDOM | PROMPT_LOGPROBS),
    ],
)
def test_features_say_what_a_row_needs(options: dict[str, Any], features: int) -> None:
    columns = SamplingColumns(3, vocab_size=100)
    columns.set(1, SamplingParams(**options), seed=0)
    assert columns.features.tolist() == [0, features, 0]
    columns.clear(1)
    assert columns.features.tolist() == [0, 0, 0]
    assert columns.edits == {}


def test_minus_one_means_the_whole_vocabulary() -> None:
    columns = SamplingColumns(1, vocab_size=100)
    columns.set(0, SamplingParams(logprobs=-1, prompt_logprobs=3, top_k=-1), seed=0)
    assert (columns.num_logprobs[0], columns.num_prompt_logprobs[0], columns.top_k[0]) == (100, 3, 100)
    columns.set(0, SamplingParams(logprobs=101, prompt_logprobs=2**63 - 1, top_k=2**63 - 1), seed=0)
    assert (columns.num_logprobs[0], columns.num_prompt_logprobs[0], columns.top_k[0]) == (100, 100, 100)


def test_numbers_that_float32_cannot_hold() -> None:
    columns = SamplingColumns(1, vocab_size=100)
    columns.set(0, SamplingParams(temperature=1e308, repetition_penalty=1e308), seed=0)
    assert columns.temperature[0] == columns.repetition_penalty[0] == np.finfo(np.float32).max


def test_uniforms_come_from_seed_and_position_alone() -> None:
    columns = SamplingColumns(4, vocab_size=10)
    for row, seed in enumerate([5, 5, 6, -1]):
        columns.set(row, SamplingParams(), seed)
    rows = np.array([0, 1, 2, 3, 0])
    values = columns.uniforms(rows, np.array([3, 3, 3, 3, 4]))
    assert values[0] == values[1]
    assert len(set(values.tolist())) == 4
    assert values[[4, 2]].tolist() == columns.uniforms(rows[[4, 2]], np.array([4, 3])).tolist()


def test_uniforms_are_even_over_seeds_and_over_positions() -> None:
    count = 20_000
    columns = SamplingColumns(count, vocab_size=10)
    for row in range(count):
        columns.set(row, SamplingParams(), seed=row)
    rows = np.arange(count)
    for values in (columns.uniforms(rows, np.full(count, 9)), columns.uniforms(np.zeros(count, np.int64), rows)):
        assert values.min() >= 0
        assert values.max() < 1
        counts = np.bincount((values * 20).astype(int), minlength=20)
        assert ((counts - count / 20) ** 2 / (count / 20)).sum() < 43.8  # chi-squared, 19 degrees, 0.999
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.02
