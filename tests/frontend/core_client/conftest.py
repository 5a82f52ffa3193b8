"""A fixture that replaces the engine core's process by one that behaves badly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from vllm_lite.frontend.core_client import processes

ROOT = Path(__file__).parents[3]


@pytest.fixture
def fake_core(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Call it with the way in which engine cores are to behave."""

    def choose(mode: str) -> None:
        monkeypatch.setattr(processes, "ENGINE_CORE_MODULE", "tests.frontend.core_client.fake_core")
        monkeypatch.setenv("FAKE_CORE", mode)
        monkeypatch.chdir(ROOT)

    return choose


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)
