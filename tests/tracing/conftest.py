"""The canned run and the recorded ones, each made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tracing.journeys import HEADERS, Journeys, Recorded, params, play
from vllm_lite.tracing.canned import write_canned_run
from vllm_lite.tracing.control_page import ControlPage
from vllm_lite.tracing.journey import Run, load_run


@pytest.fixture(scope="session")
def canned_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The story at level 3, as it ends well. Do not write into it."""
    return write_canned_run(tmp_path_factory.mktemp("canned") / "run")


@pytest.fixture(scope="session")
def dead_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The story in which the engine core dies. Do not write into it."""
    return write_canned_run(tmp_path_factory.mktemp("dead") / "run", engine_dies=True)


@pytest.fixture(scope="session")
def canned(canned_dir: Path) -> Run:
    return load_run(canned_dir)


@pytest.fixture(scope="session")
def dead(dead_dir: Path) -> Run:
    return load_run(dead_dir)


@pytest.fixture(scope="session")
def told(tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return play(tiny_model_path, tmp_path_factory.mktemp("told") / "run", Journeys.play)


@pytest.fixture(scope="session")
def died(tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return play(tiny_model_path, tmp_path_factory.mktemp("died") / "run", Journeys.die)


@pytest.fixture(scope="session")
def worked(tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """With a worker that computes."""
    out = tmp_path_factory.mktemp("worked") / "run"
    return play(tiny_model_path, out, lambda j: j.ask("real", "hello", params(3), HEADERS), distributed_executor_backend="uni")


@pytest.fixture(scope="session")
def called(tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """With a worker in a process of its own, which is killed at last."""
    toy = {"worker_cls": "vllm_lite.engine_core.executor.toy.ToyWorker", "toy_step_time": 0.005}
    out = tmp_path_factory.mktemp("called") / "run"
    return play(tiny_model_path, out, Journeys.call, distributed_executor_backend="mp", additional_config=toy)


@pytest.fixture(scope="session")
def balanced(tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Two engine cores, and no figures kept."""
    out = tmp_path_factory.mktemp("balanced") / "run"
    return play(tiny_model_path, out, Journeys.balance, data_parallel_size=2, disable_log_stats=True)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """An empty run at level 3."""
    ControlPage.create(tmp_path, level=3, pid=1).close()
    return tmp_path
