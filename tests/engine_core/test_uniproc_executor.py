"""The worker as a place in this process."""

from __future__ import annotations

import pytest

from tests.engine_core.harness import make_config
from vllm_lite.engine_core.executor.abstract import Executor
from vllm_lite.engine_core.executor.toy import ToyWorker
from vllm_lite.engine_core.executor.uniproc_executor import UniProcExecutor


class Uni(UniProcExecutor):
    def _make_worker(self) -> ToyWorker:
        return ToyWorker(self.vllm_config)


def test_it_is_the_default() -> None:
    config = make_config()
    config.parallel_config.distributed_executor_backend = "uni"
    assert Executor.get_class(config) is UniProcExecutor


def test_calls_reach_the_worker_and_its_errors_come_back_as_they_are() -> None:
    executor = Uni(make_config())
    assert executor.max_concurrent_batches == 1
    assert executor.determine_available_memory() > 0
    assert executor.collective_rpc("sleep_for", timeout=1.0, kwargs={"seconds": 0.0}) == [0]
    with pytest.raises(AttributeError, match="no_such_method"):
        executor.collective_rpc("no_such_method")
    executor.register_failure_callback(lambda: pytest.fail("no process, no failure"))
    executor.check_health()
    executor.shutdown()
