"""The canned run, written and loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

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


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """An empty run at level 3."""
    ControlPage.create(tmp_path, level=3, pid=1).close()
    return tmp_path
