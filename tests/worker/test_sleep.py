"""Weights and KV cache leave the worker and come back; the figures show it, and no token changes."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.driver import make_config
from vllm_lite.engine_core.core import EngineCore
from vllm_lite.engine_core.executor.abstract import Executor
from vllm_lite.engine_core.kv_cache_utils import get_kv_cache_config
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.messages import EngineCoreRequest
from vllm_lite.worker.device import resident_memory
from vllm_lite.worker.worker import Worker

MIB = 1 << 20


def make_worker(folder: Path, num_blocks: int = 64) -> Worker:
    config = make_config(folder, dtype="float32", max_model_len=128)
    config.cache_config.num_gpu_blocks_override = num_blocks
    worker = Worker(config)
    worker.initialize_from_config(get_kv_cache_config(config, worker.get_kv_cache_specs(), None))
    return worker


def test_figures_of_each_level(tiny_model_path: Path) -> None:
    worker = make_worker(tiny_model_path)
    awake = worker.memory_figures()
    assert (awake["weights"], awake["kv_cache"]) == (755968, 64 * 4 * 4 * 2 * 2 * 16 * 4)
    worker.sleep(1)  # on a CPU the host is where the weights are
    assert (worker.memory_figures()["weights"], worker.memory_figures()["kv_cache"]) == (755968, 0)
    worker.wake_up(["weights"])
    worker.wake_up(["kv_cache"])
    assert worker.memory_figures()["kv_cache"] == awake["kv_cache"]
    worker.sleep(2)
    assert (worker.memory_figures()["weights"], worker.memory_figures()["kv_cache"]) == (0, 0)
    with pytest.raises(RuntimeError, match='wake up "weights" before "kv_cache"'):
        worker.wake_up(["kv_cache"])
    worker.wake_up(["weights", "kv_cache"])
    assert (worker.memory_figures()["weights"], worker.memory_figures()["kv_cache"]) == (755968, awake["kv_cache"])


def test_the_operating_system_gets_the_memory_back(tiny_model_path: Path) -> None:
    worker = make_worker(tiny_model_path, num_blocks=65536)
    cache = weakref.ref(touch_the_caches(worker)[0])
    size = worker.memory_figures()["kv_cache"]
    assert size == 256 * MIB
    full = resident_memory()
    worker.release_kv_cache_memory()
    assert cache() is None
    assert full - resident_memory() > size - 16 * MIB
    model = weakref.ref(worker._model)  # type: ignore[arg-type]
    worker.sleep(2)
    assert model() is None


def touch_the_caches(worker: Worker) -> list[torch.Tensor]:
    """Memory that was never written to is not there yet."""
    layers: list[Any] = [call.module.paged for call in worker._runner._calls.values()]
    return [cache.fill_(1.0) for layer in layers for cache in (layer.key_cache, layer.value_cache)]


@pytest.mark.parametrize("level", [1, 2])
def test_answers_go_on_where_they_stopped(tiny_model_path: Path, level: int) -> None:
    config = make_config(tiny_model_path, max_model_len=128)
    config.cache_config.num_gpu_blocks_override = 64
    core = EngineCore(config, Executor.get_class(config))

    def answer(request_id: str, nap: bool) -> list[int]:
        params = SamplingParams(temperature=1.0, max_tokens=12, seed=3)
        letter = EngineCoreRequest(request_id, list(b"hello there"), None, params, None, 0.0)
        core.add_request(core.preprocess_add_request(letter))
        tokens: list[int] = []
        while core.has_work():
            bags = core.step()
            tokens += [token for bag in bags.values() for row in bag.outputs for token in row.new_token_ids]
            if nap and len(tokens) == 5 and not core.is_sleeping():
                assert core.sleep(level, "keep") is None
                assert core.collective_rpc("memory_figures")[0]["kv_cache"] == 0
                assert not core.has_work()
                assert core.wake_up()
        return tokens

    assert answer("a", nap=True) == answer("b", nap=False)
    core.shutdown()
