"""Fixtures for all tests: a clean environment and the models, found or made once."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_lite.config.model_files import DEFAULT_MODEL, resolve_model
from vllm_lite.config.tiny_model import write_tiny_model

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch loads, here and in every child
os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is first imported; there is no other way without a GPU
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it, and so would every child


@pytest.fixture(scope="session", autouse=True)
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run directories go to a folder of this test session; no variable of the user's shell changes what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("VLLM_LITE_", "OTEL_"))]:
            patch.delenv(name)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


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


@pytest.fixture
def otel_logger() -> Iterator[None]:
    """What sending spans does to OpenTelemetry's logger is undone."""
    logger = logging.getLogger("opentelemetry")
    handlers, propagate = list(logger.handlers), logger.propagate
    yield
    logger.handlers, logger.propagate = handlers, propagate
