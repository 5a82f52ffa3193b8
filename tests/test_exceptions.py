from __future__ import annotations

from vllm_lite.exceptions import (
    EngineDeadError,
    EngineGenerateError,
    UnsupportedModelError,
    VLLMClientError,
    VLLMValidationError,
)


def test_a_callers_fault_is_a_value_error() -> None:
    assert issubclass(VLLMValidationError, VLLMClientError)
    assert issubclass(UnsupportedModelError, VLLMClientError)
    assert issubclass(VLLMClientError, ValueError)


def test_the_engines_faults_are_not_the_callers() -> None:
    assert not issubclass(EngineDeadError, VLLMClientError)
    assert not issubclass(EngineGenerateError, VLLMClientError)


def test_engine_dead_error_says_what_to_do() -> None:
    assert str(EngineDeadError()).endswith("Build a new engine.")
    assert str(EngineDeadError("why")) == "why"
