"""Whatever a step holds, the tokens are those of transformers' generate."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.driver import Driver, greedy, make_config
from tests.worker.reference import generate, load_reference, logprobs
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams

ANSWER = 16


@pytest.fixture(scope="module")
def reference(tiny_model_path: Path) -> Any:
    return load_reference(tiny_model_path, "float64")


@pytest.fixture(scope="module")
def driver(tiny_model_path: Path) -> Driver:
    return Driver(make_config(tiny_model_path, block_size=4, max_model_len=400))


def prompt_of(length: int, seed: int) -> list[int]:
    choose = random.Random(seed)
    return [choose.randrange(256) for _ in range(length)]


def prompts(count: int, seed: int) -> list[list[int]]:
    choose = random.Random(seed)
    return [[choose.randrange(256) for _ in range(choose.randint(1, 90))] for _ in range(count)]


@pytest.mark.parametrize("budget", [7, 33, 1000])
def test_greedy_tokens_equal_generate_batched_and_chunked(driver: Driver, reference: Any, budget: int) -> None:
    asked = prompts(6, seed=budget)
    for number, prompt in enumerate(asked):
        driver.add(f"r{number}", prompt)
    assert driver.run(ANSWER, budget) == {f"r{n}": generate(reference, prompt, ANSWER) for n, prompt in enumerate(asked)}


def test_prompts_that_share_blocks_computed_in_the_same_step(driver: Driver, reference: Any) -> None:
    common = prompt_of(32, seed=1)
    first, second = [*common, 5, 6, 7], [*common, 9]
    driver.add("first", first)
    driver.add("second", second)
    driver.share("second", "first", 32)
    driver.step({"second": 1, "first": 35})  # the one that computes the shared blocks comes last in the batch
    assert driver.requests["second"].blocks[:8] == driver.requests["first"].blocks[:8]
    assert driver.run(ANSWER) == {"first": generate(reference, first, ANSWER), "second": generate(reference, second, ANSWER)}


def test_a_prefix_computed_earlier_is_read_from_the_cache(driver: Driver, reference: Any) -> None:
    prompt = prompt_of(20, seed=2)
    driver.add("first", prompt)
    driver.step({"first": 20})
    driver.add("second", [*prompt, 3])
    driver.share("second", "first", 20)
    driver.step({"first": 1, "second": 1})
    assert driver.run(ANSWER) == {
        "first": generate(reference, prompt, ANSWER),
        "second": generate(reference, [*prompt, 3], ANSWER),
    }


def test_a_preempted_request_goes_on_as_if_nothing_had_been(driver: Driver, reference: Any) -> None:
    one, two = prompts(2, seed=3)
    driver.add("one", one)
    driver.add("two", two)
    for _ in range(5):
        driver.step({name: driver.left(name) for name in ("one", "two")})
    driver.preempt("one")
    driver.step({"two": 1})
    driver.add("three", two)  # takes the blocks that were "one"'s
    driver.step({"two": 1, "three": len(two)})
    assert driver.run(ANSWER) == {
        "one": generate(reference, one, ANSWER),
        "two": generate(reference, two, ANSWER),
        "three": generate(reference, two, ANSWER),
    }


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_schedule_gives_the_same_tokens(driver: Driver, reference: Any, data: st.DataObject) -> None:
    for name in list(driver.requests):  # of an example that hypothesis gave up half way
        driver.finish(name)
    asked = prompts(data.draw(st.integers(1, 5)), seed=data.draw(st.integers(0, 20)))
    names = [f"r{number}" for number in range(len(asked))]
    for name, prompt in zip(names, asked, strict=True):
        driver.add(name, prompt)
    for _ in range(data.draw(st.integers(0, 12))):
        chosen = data.draw(st.lists(st.sampled_from(names), unique=True))
        if data.draw(st.integers(0, 5)) == 0:
            driver.preempt(data.draw(st.sampled_from(names)))
        counts = {name: data.draw(st.integers(1, driver.left(name))) for name in chosen if driver.left(name)}
        driver.step(counts)
    longest = max(len(driver.requests[name].answer) for name in names)
    count = max(8, longest)
    assert driver.run(count) == {name: generate(reference, p, count) for name, p in zip(names, asked, strict=True)}


def test_smollm2_float32_equals_generate(smollm2_path: Path) -> None:
    reference = load_reference(smollm2_path, "float32")
    driver = Driver(make_config(smollm2_path, dtype="float32", block_size=16, max_model_len=512))
    choose = random.Random(5)
    asked = [[choose.randrange(49152) for _ in range(length)] for length in (3, 35, 70, 17, 129)]
    for number, prompt in enumerate(asked):
        driver.add(str(number), prompt)
    driver.step({"0": 3, "1": 20})
    driver.preempt("1")
    assert driver.run(12, budget=48) == {str(n): generate(reference, prompt, 12) for n, prompt in enumerate(asked)}


def test_two_engines_in_one_process_keep_apart(driver: Driver, reference: Any, tiny_model_path: Path) -> None:
    other = Driver(make_config(tiny_model_path, dtype="float64", block_size=8, max_model_len=300))
    one, two = prompts(2, seed=8)
    driver.add("one", one)
    other.add("two", two)
    for _ in range(3):
        driver.step({"one": driver.left("one")})
        other.step({"two": other.left("two")})
    assert driver.run(8)["one"] == generate(reference, one, 8)
    assert other.run(8)["two"] == generate(reference, two, 8)


def test_an_unfinished_chunk_has_an_empty_row_and_batch_order_is_told(driver: Driver) -> None:
    driver.add("long", list(range(30)))
    driver.add("short", [1])
    output = driver.step({"long": 10, "short": 1})
    rows = dict(zip(output.req_ids, output.sampled_token_ids, strict=True))
    assert rows["long"] == []
    assert len(rows["short"]) == 1
    assert (output.logprobs, output.prompt_logprobs, output.errors) == (None, {}, {})
    driver.finish("long")
    driver.finish("short")


def test_a_step_without_tokens_only_passes_on_who_left(driver: Driver) -> None:
    driver.add("r", [1, 2, 3])
    driver.step({"r": 3})
    driver.finish("r")
    output = driver.step({})
    assert (output.req_ids, output.sampled_token_ids) == ([], [])


@pytest.mark.parametrize("chunk", [3, 7, 100])
def test_logprobs_and_prompt_logprobs_equal_the_models(driver: Driver, reference: Any, chunk: int) -> None:
    prompt = prompt_of(41, seed=11)
    driver.add("other", [4, 4, 4])
    driver.step({"other": 3})
    request = driver.add("r", prompt, greedy(logprobs=3, prompt_logprobs=2))
    parts, sampled = [], []
    while len(request.answer) < 4:
        output = driver.step({"other": 1, "r": min(chunk, driver.left("r"))})
        parts += [output.prompt_logprobs["r"]] if "r" in output.prompt_logprobs else []
        if output.logprobs is not None:
            assert output.logprobs[output.req_ids.index("other")] is None
            sampled.append(output.logprobs[output.req_ids.index("r")])
    expected = logprobs(reference, request.tokens).numpy()
    ids = np.concatenate([part.logprob_token_ids for part in parts])
    values = np.concatenate([part.logprobs for part in parts])
    assert ids.shape == (40, 3)
    assert (ids.dtype, values.dtype) == (np.int32, np.float32)
    assert ids[:, 0].tolist() == prompt[1:]
    np.testing.assert_array_equal(ids[:, 1:], np.argsort(-expected[:40], axis=1)[:, :2])
    np.testing.assert_allclose(values, np.take_along_axis(expected[:40], ids.astype(int), axis=1), rtol=1e-5)
    ranks = np.concatenate([part.sampled_token_ranks for part in parts])
    own = np.take_along_axis(expected[:40], ids[:, :1].astype(int), axis=1)
    assert ranks.tolist() == ((expected[:40] > own).sum(axis=1) + 1).tolist()
    for position, lists in enumerate(sampled[:4], start=40):
        assert lists.logprob_token_ids.shape == (1, 4)
        assert lists.logprob_token_ids[0, 0] == lists.logprob_token_ids[0, 1] == request.tokens[position + 1]
        np.testing.assert_allclose(lists.logprobs[0], expected[position][lists.logprob_token_ids[0]], rtol=1e-5)
        assert lists.sampled_token_ranks.tolist() == [1]
    driver.finish("r")
    driver.finish("other")


def test_prompt_logprobs_are_not_made_again_for_a_resumed_request(driver: Driver) -> None:
    driver.add("r", [1, 2, 3, 4, 5], greedy(prompt_logprobs=0))
    output = driver.step({"r": 5})
    assert output.prompt_logprobs["r"].logprob_token_ids.tolist() == [[2], [3], [4], [5]]
    driver.preempt("r")
    assert driver.step({"r": 6}).prompt_logprobs == {}
    driver.finish("r")


def test_minus_one_asks_for_every_logprob(driver: Driver) -> None:
    driver.add("r", [1, 2], greedy(logprobs=-1, prompt_logprobs=-1))
    output = driver.step({"r": 2})
    assert output.logprobs is not None
    assert output.logprobs[0].logprobs.shape == (1, 321)
    assert output.prompt_logprobs["r"].logprobs.shape == (1, 321)
    driver.finish("r")


def test_a_request_whose_logits_are_broken_fails_alone(tiny_model_path: Path, reference: Any) -> None:
    driver = Driver(make_config(tiny_model_path, max_model_len=100))
    embedding = driver.worker._runner._model.get_input_embeddings().weight
    with torch.inference_mode():
        embedding[200] = torch.nan
    driver.add("bad", [5, 200, 7], greedy(logprobs=1))
    driver.add("good", [5, 6, 7])
    driver.add("sampled", [5, 200], SamplingParams(seed=1, max_tokens=None))
    driver.add("vector", [200, 5], PoolingParams())
    output = driver.step({"bad": 3, "good": 3, "sampled": 2, "vector": 2})
    assert set(output.errors) == {"bad", "sampled", "vector"}
    assert "not a number" in output.errors["bad"]
    assert "not a number" in output.errors["vector"]
    rows = dict(zip(output.req_ids, output.sampled_token_ids, strict=True))
    assert rows["bad"] == rows["sampled"] == []
    driver.finish("bad")
    driver.finish("sampled")
    driver.finish("vector")
    driver.step({"good": 1})
    driver.add("heir", [1] * 30)  # among others it gets the blocks of the failed ones, whose keys are not numbers
    answers = driver.run(6)
    assert answers["heir"] == generate(reference, [1] * 30, 6)
    assert answers["good"] == generate(reference, [5, 6, 7], 6)


def test_seeded_answers_do_not_depend_on_the_batch_or_on_preemption(driver: Driver) -> None:
    def params(seed: int | None) -> SamplingParams:
        return SamplingParams(temperature=1.0, top_p=0.9, seed=seed, max_tokens=None)

    driver.add("alone", [1, 2, 3], params(7))
    alone = driver.run(12)["alone"]
    for number in range(4):
        driver.add(f"r{number}", [9, number], params(number))
    driver.add("same", [1, 2, 3], params(7))
    driver.add("other seed", [1, 2, 3], params(8))
    driver.step({name: driver.left(name) for name in driver.requests})
    driver.preempt("same")
    answers = driver.run(12, budget=9)
    assert answers["same"] == alone
    assert answers["other seed"] != alone


def test_an_unseeded_request_keeps_its_randomness_over_a_preemption(tiny_model_path: Path) -> None:
    def answer(preempt: bool) -> list[int]:
        driver = Driver(make_config(tiny_model_path, max_model_len=100, seed=3))
        driver.add("r", [1, 2, 3], SamplingParams(temperature=1.0, max_tokens=None))
        driver.step({"r": 3})
        if preempt:
            driver.preempt("r")
        return driver.run(10)["r"]

    assert answer(preempt=True) == answer(preempt=False)
