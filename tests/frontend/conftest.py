"""Fixtures for the front end's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_lite.frontend.tokenizer import Tokenizer


@pytest.fixture(autouse=True)
def _state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run directories of these tests go where the test's other files go."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_model_path: Path) -> Tokenizer:
    return Tokenizer(tiny_model_path)
