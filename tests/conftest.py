"""Fixtures for all tests: the models, found or made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_lite.config.model_files import DEFAULT_MODEL, resolve_model
from vllm_lite.config.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The seeded tiny Llama, written for this test session alone."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(folder)
    return folder


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model, SmolLM2-135M-Instruct, from the user's cache; fetched and converted where it is not there yet."""
    return resolve_model(DEFAULT_MODEL)
