from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.worker.driver import Driver, greedy, make_config
from tests.worker.reference import generate, load_reference
from tests.worker.test_probe import ARCHITECTURES, make_model
from vllm_lite.pooling_params import PoolingParams

PROMPTS = {"a": [5, 9, 77, 3, 120], "b": [(7 * i) % 120 + 3 for i in range(30)]}


@pytest.fixture(scope="module")
def reference(tiny_model_path: Path) -> Any:
    return load_reference(tiny_model_path, "float64")


@pytest.fixture(scope="module")
def driver(tiny_model_path: Path) -> Driver:
    return Driver(make_config(tiny_model_path, block_size=4, max_model_len=200))


def expected(reference: Any, prompt: list[int], params: PoolingParams) -> np.ndarray:
    with torch.inference_mode():
        states = reference.base_model(torch.tensor([prompt]), use_cache=False).last_hidden_state[0].double().numpy()
    vector = {"last": states[-1], "cls": states[0], "mean": states.mean(axis=0)}[params.pooling_type]
    return vector / np.linalg.norm(vector) if params.normalize else vector


def embed(driver: Driver, names: dict[str, list[int]], params: PoolingParams, budget: int) -> dict[str, np.ndarray]:
    """Each prompt's vector, computed `budget` tokens of each a step."""
    vectors: dict[str, np.ndarray] = {}
    for name, prompt in names.items():
        driver.add(name, prompt, params)
    while len(vectors) < len(names):
        pending = [name for name in names if name not in vectors]
        output = driver.step({name: min(driver.left(name), budget) for name in pending})
        assert output.sampled_token_ids == [[] for _ in pending]
        assert output.pooler_output is not None
        vectors |= {n: v for n, v in zip(output.req_ids, output.pooler_output, strict=True) if v is not None}
    for name in names:
        driver.finish(name)
    return vectors


@pytest.mark.parametrize("pooling_type", ["last", "mean", "cls"])
@pytest.mark.parametrize(("normalize", "budget"), [(True, 7), (False, 100), (False, 1)])
def test_vectors_are_those_of_the_models_last_hidden_states(
    driver: Driver, reference: Any, pooling_type: str, normalize: bool, budget: int
) -> None:
    params = PoolingParams(pooling_type=pooling_type, normalize=normalize)
    for name, vector in embed(driver, PROMPTS, params, budget).items():
        assert vector.dtype == np.float32
        np.testing.assert_allclose(vector, expected(reference, PROMPTS[name], params), rtol=1e-5, atol=1e-6)


def test_embeddings_and_answers_share_a_step(driver: Driver, reference: Any) -> None:
    params = PoolingParams(pooling_type="mean")
    driver.add("vector", PROMPTS["b"], params)
    driver.add("answer", PROMPTS["a"])
    output = driver.step({"vector": 10, "answer": 5})
    assert output.pooler_output == [None, None]
    driver.preempt("vector")  # what was summed up is not counted twice
    output = driver.step({"answer": 1, "vector": 30})
    vectors = dict(zip(output.req_ids, output.pooler_output or [], strict=True))
    assert vectors["answer"] is None
    np.testing.assert_allclose(vectors["vector"], expected(reference, PROMPTS["b"], params), rtol=1e-5, atol=1e-6)
    driver.finish("vector")
    assert driver.step({"answer": 1}).pooler_output is None
    assert driver.finish("answer") == generate(reference, PROMPTS["a"], 3)


def test_nothing_is_kept_of_a_request_that_ended_early(driver: Driver) -> None:
    driver.add("gone", PROMPTS["b"], PoolingParams(pooling_type="mean"))
    driver.step({"gone": 10})
    pooler = driver.worker._runner._pooler
    assert list(pooler._partial) == ["gone"]
    driver.finish("gone")
    driver.step({})
    assert pooler._partial == {}
    driver.add("plain", [1, 2], greedy())  # takes the row
    assert len(driver.step({"plain": 2}).sampled_token_ids[0]) == 1
    driver.finish("plain")


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_every_architecture_has_hidden_states(kind: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path / kind, kind, **ARCHITECTURES[kind])
    driver = Driver(make_config(folder, block_size=4, max_model_len=64))
    params = PoolingParams(normalize=False)
    vector = embed(driver, {"a": PROMPTS["a"]}, params, budget=10)["a"]
    np.testing.assert_allclose(vector, expected(load_reference(folder, "float64"), PROMPTS["a"], params), rtol=1e-5, atol=1e-6)
