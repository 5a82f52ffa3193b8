"""Exact answers where there is one; elsewhere frequencies against probabilities worked out by the definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.worker.batches import VOCAB, make_batch, new_request
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.worker.sampler import NO_TOKEN, sample
from vllm_lite.worker.sampling_columns import SamplingColumns

DRAWS = 4000
CHI_SQUARED_LIMITS = {1: 10.8, 2: 13.8, 3: 16.3, 4: 18.5, 5: 20.5, 15: 37.7}  # exceeded by chance once in a thousand
LOGITS = np.array([2.0, 0.5, -1.0, 1.5, 0.0, 3.0, -2.0, 1.0, 2.5, -0.5, 0.2, 0.7, -3.0, 1.2, 1.9, -1.5])


def tokens_for(logits: np.ndarray | torch.Tensor, *params: SamplingParams) -> list[int]:
    """One token for each of `params`, whose requests have the rows of `logits` or all the same."""
    batch, rows = make_batch(*(new_request(str(i), [1, 2], p) for i, p in enumerate(params)))
    tensor = torch.as_tensor(logits, dtype=torch.float32)
    return sample(tensor.expand(len(params), -1).clone(), rows, batch).token_ids.tolist()


def probabilities(temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """By the definitions, one token at a time: min-p against the peak, the k best, then the fewest that reach top_p."""
    weights = np.exp(LOGITS / temperature)
    weights /= weights.sum()
    kept = {token for token in range(VOCAB) if weights[token] >= min_p * weights.max()}
    best = [token for token in np.argsort(-weights).tolist() if token in kept][: top_k or VOCAB]
    total, chosen, reached = sum(weights[best]), [], 0.0
    for token in best:
        if reached < top_p * total:
            chosen.append(token)
            reached += weights[token]
    result = np.zeros(VOCAB)
    result[chosen] = weights[chosen] / weights[chosen].sum()
    return result


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.5, 0, 1.0, 0.0),
        (2.0, 4, 1.0, 0.0),
        (1.0, 0, 0.6, 0.0),
        (1.0, 0, 1.0, 0.3),
        (1.5, 6, 0.8, 0.0),
        (1.5, 6, 0.9, 0.35),
    ],
)
def test_frequencies_fit_the_probabilities(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    tokens = tokens_for(LOGITS, *(SamplingParams(seed=seed, **options) for seed in range(DRAWS)))
    expected = DRAWS * probabilities(**options)
    possible = expected > 0
    counts = np.bincount(tokens, minlength=VOCAB)
    assert counts[~possible].sum() == 0
    statistic = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    assert statistic < CHI_SQUARED_LIMITS[int(possible.sum()) - 1]


def test_greedy_takes_the_highest_and_the_first_of_equals() -> None:
    rows = np.stack([LOGITS, np.zeros(VOCAB)])
    assert tokens_for(rows, SamplingParams(temperature=0.0), SamplingParams(temperature=0.0)) == [5, 0]
    assert tokens_for(LOGITS, SamplingParams(temperature=1e-6)) == [5]


def test_top_k_of_one_is_greedy_and_a_top_k_beyond_the_vocabulary_is_all() -> None:
    assert tokens_for(LOGITS, *(SamplingParams(top_k=1, seed=seed) for seed in range(50))) == [5] * 50
    wide = [SamplingParams(top_k=1000, seed=seed) for seed in range(50)]
    assert tokens_for(LOGITS, *wide) == tokens_for(LOGITS, *(SamplingParams(seed=seed) for seed in range(50)))


def test_equals_at_the_edge_of_top_k_stay() -> None:
    logits = np.full(VOCAB, -5.0)
    logits[[3, 7, 9]] = 2.0
    assert set(tokens_for(logits, *(SamplingParams(top_k=2, seed=seed) for seed in range(60)))) == {3, 7, 9}


def test_a_tiny_top_p_leaves_the_most_likely_alone() -> None:
    assert tokens_for(LOGITS, *(SamplingParams(top_p=1e-6, seed=seed) for seed in range(20))) == [5] * 20


def test_a_token_depends_on_its_own_seed_and_not_on_its_neighbours() -> None:
    mixed = [
        SamplingParams(seed=1),
        SamplingParams(temperature=0.0),
        SamplingParams(seed=2, top_p=0.7),
        SamplingParams(seed=1, top_k=5),
        SamplingParams(seed=3, min_p=0.1, temperature=1.7),
        SamplingParams(seed=4, logprobs=2, presence_penalty=0.3),
    ]
    together = tokens_for(LOGITS, *mixed)
    assert together == [tokens_for(LOGITS, params)[0] for params in mixed]
    assert together[::-1] == tokens_for(LOGITS, *mixed[::-1])


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 2), (np.nextafter(0.5, 0), 2), (0.5, 4), (1 - 2.0**-52, 4)])
def test_the_edges_of_a_draw_never_give_an_impossible_token(
    monkeypatch: pytest.MonkeyPatch, uniform: float, token: int
) -> None:
    monkeypatch.setattr(SamplingColumns, "uniforms", lambda self, rows, positions: np.full(len(rows), uniform))
    logits = np.full(VOCAB, -np.inf)
    logits[[2, 4]] = 1.0
    assert tokens_for(logits, SamplingParams()) == [token]


def test_positions_give_fresh_numbers() -> None:
    tokens = []
    for length in range(40):
        batch, rows = make_batch(new_request("r", [1], SamplingParams(seed=5), answer=[1] * length))
        tokens += sample(torch.zeros(1, VOCAB), rows, batch).token_ids.tolist()
    assert len(set(tokens)) > VOCAB // 2


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(seed=0), SamplingParams(seed=0, top_p=0.5)])
@pytest.mark.parametrize("broken", [torch.nan, -torch.inf])
def test_a_row_without_a_choice_gives_no_token_and_leaves_the_others_alone(params: SamplingParams, broken: float) -> None:
    logits = torch.tensor(LOGITS, dtype=torch.float32).repeat(2, 1)
    logits[0] = broken
    assert tokens_for(logits, params, SamplingParams(temperature=0.0)) == [NO_TOKEN, 5]


def test_logprobs_are_those_of_the_raw_logits() -> None:
    params = SamplingParams(temperature=0.3, top_k=2, logprobs=1, logit_bias={4: 50.0}, seed=0)
    batch, rows = make_batch(new_request("a", [1], SamplingParams(temperature=0.0)), new_request("b", [1], params))
    logits = torch.tensor(LOGITS, dtype=torch.float32).repeat(2, 1)
    output = sample(logits.clone(), rows, batch)
    assert output.token_ids.tolist() == [5, 4]
    assert output.logprob_rows.tolist() == [1]
    assert output.logprobs is not None
    torch.testing.assert_close(output.logprobs, logits[:1].log_softmax(-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_dtype_of_logits(dtype: torch.dtype) -> None:
    batch, rows = make_batch(
        new_request("a", [1], SamplingParams(temperature=0.0)), new_request("b", [1], SamplingParams(seed=3))
    )
    logits = torch.tensor(LOGITS, dtype=dtype).repeat(2, 1)
    assert sample(logits, rows, batch).token_ids.tolist() == [5, tokens_for(LOGITS, SamplingParams(seed=3))[0]]
