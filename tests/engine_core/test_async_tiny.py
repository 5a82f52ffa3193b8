"""The real model in float64 in a worker process, its steps planned ahead: the tokens are those of requests served alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine_core.core_process import add_letter
from vllm_lite.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm_lite.engine_core.core import EngineCore
from vllm_lite.engine_core.executor.abstract import Executor
from vllm_lite.sampling_params import SamplingParams

SCHEDULES = 24
Wanted = dict[str, tuple[list[int], SamplingParams]]


def make_core(folder: Path, backend: str, **scheduler: int) -> EngineCore:
    config = VllmConfig(
        ModelConfig(str(folder), model_path=str(folder), dtype="float64", max_model_len=96, hf_config={"vocab_size": 320}),
        CacheConfig(block_size=4, num_gpu_blocks_override=40, enable_prefix_caching=backend == "mp"),
        SchedulerConfig(**scheduler),
        device_config=DeviceConfig("cpu"),
    )
    config.parallel_config.distributed_executor_backend = backend
    return EngineCore(config, Executor.get_class(config))


@pytest.fixture(scope="module")
def plain(tiny_model_path: Path) -> Iterator[EngineCore]:
    core = make_core(tiny_model_path, "uni", max_num_seqs=1)
    yield core
    core.shutdown()


@pytest.fixture(scope="module")
def ahead(tiny_model_path: Path) -> Iterator[EngineCore]:
    core = make_core(tiny_model_path, "mp", max_num_seqs=6, max_num_batched_tokens=16)
    assert core.scheduler.async_scheduling
    yield core
    core.shutdown()


def random_requests(rng: random.Random) -> Wanted:
    wanted = {}
    for index in range(rng.randint(2, 8)):
        length = rng.randint(1, 40)
        prompt = list((rng.choice([b"once upon a time ", b"once there was a fox "]) * length)[:length])
        temperature = rng.choice([0.0, 1.0])
        params = SamplingParams(
            max_tokens=rng.randint(1, 24), temperature=temperature, seed=index, min_tokens=rng.choice([0, 1])
        )
        wanted[f"r{index}"] = prompt, params
    return wanted


def serve(core: EngineCore, wanted: Wanted, rng: random.Random) -> dict[str, list[int]]:
    """All requests, which come at random moments; now and then everything cached is thrown away and computed again."""
    todo = list(wanted)
    tokens: dict[str, list[int]] = {request_id: [] for request_id in wanted}
    while todo or core.has_work():
        while todo and rng.random() < 0.4:
            request_id = todo.pop()
            core.add_request(core.preprocess_add_request(add_letter(request_id, *wanted[request_id])))
        if rng.random() < 0.02:
            core.reset_prefix_cache(reset_running_requests=True)
        for bag in core.step().values():
            for row in bag.outputs:
                tokens[row.request_id] += row.new_token_ids
    return tokens


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_planned_ahead_or_alone_the_tokens_are_the_same(plain: EngineCore, ahead: EngineCore, seed: int) -> None:
    wanted = random_requests(random.Random(seed))
    assert serve(ahead, wanted, random.Random(seed)) == serve(plain, wanted, random.Random(seed))
    assert ahead.scheduler.kv_cache_manager.usage == 0.0
