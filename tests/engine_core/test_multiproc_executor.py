"""Workers in processes of their own: toys here, and the real one once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engine_core.harness import kv_config
from vllm_lite.config import CacheConfig, ModelConfig, ParallelConfig, VllmConfig
from vllm_lite.engine_core.executor.abstract import Executor
from vllm_lite.engine_core.executor.multiproc_executor import MultiprocExecutor
from vllm_lite.engine_core.executor.toy import ToyWorker, expected_tokens
from vllm_lite.exceptions import UnsupportedModelError
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.step import CachedRequestData, NewRequestData, SchedulerOutput

PROMPT = [104, 101, 108, 108, 111, 33]
TOY = "vllm_lite.engine_core.executor.toy.ToyWorker"


def make_config(world_size: int = 2, worker_cls: str = TOY, **additional: Any) -> VllmConfig:
    return VllmConfig(
        ModelConfig("toy", max_model_len=64),
        CacheConfig(block_size=4),
        parallel_config=ParallelConfig(world_size=world_size, distributed_executor_backend="mp"),
        additional_config={"worker_cls": worker_cls, **additional},
    )


@pytest.fixture
def executor() -> Iterator[MultiprocExecutor]:
    made = MultiprocExecutor(make_config())
    made.initialize_from_config(kv_config(10, 4))
    yield made
    made.shutdown()


def first_step(step: int = 0) -> SchedulerOutput:
    new = NewRequestData("r", PROMPT, len(PROMPT), SamplingParams(temperature=0.0), None, [[7, 2]], 0)
    return SchedulerOutput(step, [new], CachedRequestData(), {"r": 6}, 6)


def pids(executor: MultiprocExecutor) -> list[int]:
    return [worker.process.pid for worker in executor._workers]


def test_a_step_and_calls_of_every_kind(executor: MultiprocExecutor) -> None:
    assert Executor.get_class(make_config()) is MultiprocExecutor
    assert executor.get_kv_cache_specs() == ToyWorker(make_config()).get_kv_cache_specs()
    assert executor.determine_available_memory() == 8192 * 4 * 8
    assert executor.worker_info()["attention_backend"] == "toy"
    assert executor.execute_model(first_step()).result() is None
    output = executor.sample_tokens().result()
    assert output.sampled_token_ids == [expected_tokens(PROMPT, 1)]
    assert executor.collective_rpc("sleep_for", args=(0.0,)) == [0, 1]
    assert executor.collective_rpc("sleep_for", kwargs={"seconds": 0.0}) == [0, 1]
    executor.check_health()


def test_futures_fetch_their_own_answers_in_any_order(executor: MultiprocExecutor) -> None:
    first, second = executor.execute_model(first_step()), executor.sample_tokens()
    assert executor.collective_rpc("sleep_for", args=(0.0,)) == [0, 1]
    assert second.result().sampled_token_ids == [expected_tokens(PROMPT, 1)]
    assert first.result() is None
    assert executor._workers[0].pending == {}


def test_every_worker_runs_every_step(executor: MultiprocExecutor) -> None:
    executor.execute_model(first_step()).result()
    executor.sample_tokens().result()
    infos = executor.collective_rpc("__repr__")
    assert len(infos) == 2


def test_a_failing_call_is_an_error_that_names_method_and_worker(executor: MultiprocExecutor) -> None:
    with pytest.raises(RuntimeError, match=r"no_such_method failed on worker 0: AttributeError"):
        executor.collective_rpc("no_such_method")
    with pytest.raises(RuntimeError, match=r"get_kv_cache_specs.*cannot be sent|__getattribute__ failed on worker 0"):
        executor.collective_rpc("__getattribute__", args=("get_info",))
    assert executor.collective_rpc("sleep_for", args=(0.0,)) == [0, 1]
    assert [worker.pending for worker in executor._workers] == [{}, {}]


def test_a_late_answer_is_a_timeout_that_names_method_and_worker_and_does_not_shift_the_next(
    executor: MultiprocExecutor,
) -> None:
    with pytest.raises(TimeoutError, match=r"worker 0 did not answer sleep_for within 0\.01 s"):
        executor.collective_rpc("sleep_for", timeout=0.01, args=(0.3,))
    assert executor.collective_rpc("sleep_for", args=(0.0,)) == [0, 1]
    assert [worker.abandoned for worker in executor._workers] == [set(), set()]


def test_a_failing_step_names_the_worker() -> None:
    executor = MultiprocExecutor(make_config(1, toy_crash_at_step=5))
    executor.initialize_from_config(kv_config(10, 4))
    with pytest.raises(
        RuntimeError, match="execute_model failed on worker 0: RuntimeError: the toy was told to crash at step 5"
    ):
        executor.execute_model(first_step(5)).result()
    executor.shutdown()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_ends_waiting_calls_and_is_reported_once(executor: MultiprocExecutor, rank: int) -> None:
    failed = threading.Semaphore(0)
    executor.register_failure_callback(failed.release)
    pid = pids(executor)[rank]
    killer = threading.Timer(0.1, os.kill, (pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(RuntimeError, match=f"worker {rank} ended with exit code -9"):
        executor.collective_rpc("sleep_for", args=(1.0,))
    killer.join()
    assert failed.acquire(timeout=10)
    assert not failed.acquire(blocking=False)
    for call in (executor.check_health, lambda: executor.execute_model(first_step())):
        with pytest.raises(RuntimeError, match=f"worker {rank} ended"):
            call()
    late = threading.Event()
    executor.register_failure_callback(late.set)
    assert late.is_set()


def test_shutdown_leaves_no_process_and_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    executor = MultiprocExecutor(make_config(2))
    workers = pids(executor)
    executor.shutdown()
    executor.shutdown()
    assert not any(psutil.pid_exists(pid) for pid in workers)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_worker_that_cannot_be_built_says_why_and_takes_the_others_with_it() -> None:
    children = set(psutil.Process().children())
    with pytest.raises(UnsupportedModelError, match="not for rank 1"):
        MultiprocExecutor(make_config(2, "tests.engine_core.test_multiproc_executor.PickyWorker"))
    with pytest.raises(RuntimeError, match=r"worker [01] cannot start: ModuleNotFoundError"):
        MultiprocExecutor(make_config(2, "no_such_module.Worker"))
    with pytest.raises(RuntimeError, match="worker 1 ended with exit code 3"):
        MultiprocExecutor(make_config(2, "tests.engine_core.test_multiproc_executor.DyingWorker"))
    assert set(psutil.Process().children()) == children


class PickyWorker(ToyWorker):
    def __init__(self, vllm_config: VllmConfig, rank: int = 0) -> None:
        if rank == 1:
            raise UnsupportedModelError("not for rank 1")
        super().__init__(vllm_config, rank)


class DyingWorker(ToyWorker):
    def __init__(self, vllm_config: VllmConfig, rank: int = 0) -> None:
        if rank == 1:
            os._exit(3)
        super().__init__(vllm_config, rank)


def test_the_real_worker_answers_from_a_process_of_its_own(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    config = make_config(1, "vllm_lite.worker.worker.Worker")
    config.model_config = ModelConfig("tiny", str(tiny_model_path), max_model_len=64)
    executor = MultiprocExecutor(config)
    specs = executor.get_kv_cache_specs()
    assert len(specs) == 4
    kv_cache_config = kv_config(10, 4)
    kv_cache_config.kv_cache_specs = specs
    kv_cache_config.kv_cache_groups[0].layer_names = list(specs)
    executor.initialize_from_config(kv_cache_config)
    executor.execute_model(first_step())
    output = executor.sample_tokens().result()
    assert len(output.sampled_token_ids[0]) == 1
    executor.shutdown()
