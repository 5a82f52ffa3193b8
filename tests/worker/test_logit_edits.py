from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.worker.batches import VOCAB, make_batch, new_request
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.worker.logit_edits import apply_edits, apply_penalties


def edited(start: np.ndarray, prompt: list[int], answer: list[int], **options: Any) -> list[float]:
    """The logits of one request between two that want nothing."""
    plain = SamplingParams()
    batch, rows = make_batch(
        new_request("a", [1], plain), new_request("b", prompt, SamplingParams(**options), answer), new_request("c", [2], plain)
    )
    logits = torch.tensor(start, dtype=torch.float64).repeat(3, 1)
    which = np.array([1])
    if 1 in batch.sampling.edits:
        apply_edits(logits, rows, which, batch)
    else:
        apply_penalties(logits, rows, which, batch)
    assert logits[0].tolist() == logits[2].tolist() == start.tolist()
    return logits[1].tolist()


START = np.linspace(-2, 2, VOCAB)


def expect(**changes: float) -> list[float]:
    values = START.copy()
    for token, value in changes.items():
        values[int(token[1:])] = value
    return pytest.approx(values.tolist())


def test_bias_is_added() -> None:
    assert edited(START, [1], [], logit_bias={3: 5.0, 15: -1.5}) == expect(t3=START[3] + 5, t15=START[15] - 1.5)


def test_only_allowed_ids_remain() -> None:
    values = edited(START, [1], [], allowed_token_ids=[4, 9], logit_bias={4: 1.0, 5: 1.0})
    assert values == expect(**{f"t{i}": -np.inf for i in range(VOCAB) if i not in (4, 9)}, t4=START[4] + 1)


@pytest.mark.parametrize(
    ("prompt", "answer", "banned"),
    [
        ([1], [], [7]),  # a word of one token never comes
        ([1], [5], [7, 6]),
        ([1], [5, 6], [7, 8]),
        ([1], [9, 5, 6], [7, 8]),
        ([1, 5], [], [7]),  # the prompt is not the beginning of a word
        ([5], [6], [7]),
    ],
)
def test_bad_words_are_stopped_at_their_last_token(prompt: list[int], answer: list[int], banned: list[int]) -> None:
    words = [[7], [5, 6], [5, 6, 8]]
    assert edited(START, prompt, answer, bad_words_token_ids=words) == expect(**{f"t{i}": -np.inf for i in banned})


def test_stop_tokens_are_masked_until_min_tokens() -> None:
    options = {"min_tokens": 2, "all_stop_token_ids": {3, 11}}
    assert edited(START, [1], [4], **options) == expect(t3=-np.inf, t11=-np.inf)
    assert edited(START, [1], [4, 4], **options) == expect()


def test_repetition_penalty_counts_prompt_and_answer() -> None:
    values = edited(START, [2, 2, 7], [14, 8], repetition_penalty=2.0)
    assert values == expect(t2=START[2] * 2, t7=START[7] * 2, t14=START[14] / 2, t8=START[8] / 2)


def test_frequency_and_presence_penalties_count_the_answer_alone() -> None:
    values = edited(START, [2], [5, 5, 5, 6], frequency_penalty=0.5, presence_penalty=0.25)
    assert values == expect(t5=START[5] - 1.75, t6=START[6] - 0.75)


def test_penalties_together_and_for_several_requests() -> None:
    one, two = SamplingParams(repetition_penalty=2.0, frequency_penalty=1.0), SamplingParams(presence_penalty=1.0)
    batch, rows = make_batch(new_request("a", [3], one, [15, 15]), new_request("b", [3], two, [15, 15]))
    logits = torch.tensor(START, dtype=torch.float32).repeat(2, 1)
    apply_penalties(logits, rows, np.array([0, 1]), batch)
    first, second = START.copy(), START.copy()
    first[3], first[15], second[15] = START[3] * 2, START[15] / 2 - 2, START[15] - 1
    np.testing.assert_allclose(logits.numpy(), np.stack([first, second]), rtol=1e-6)
