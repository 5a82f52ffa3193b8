from __future__ import annotations

from typing import Any

import pytest

from vllm_lite.config import ObservabilityConfig
from vllm_lite.exceptions import VLLMValidationError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("trace_level", 4),
        ("trace_level", -1),
        ("trace_level", "3"),
        ("trace_keep", None),
        ("trace_steps", "some"),
        ("trace_steps", "1.5"),
        ("trace_steps", "nan"),
        ("trace_steps", None),
        ("trace_steps", 0.5),
        ("trace_dir", 5),
        ("trace_dir", "\0"),
        ("otlp_traces_endpoint", 5),
        ("otlp_traces_endpoint", "\ud800"),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(VLLMValidationError, match=rf"^{field} must be ") as caught:
        ObservabilityConfig(**{field: value})
    assert caught.value.parameter == field


@pytest.mark.parametrize("value", ["sampled", "all", "off", "0", "0.1", "1"])
def test_trace_steps(value: str) -> None:
    assert ObservabilityConfig(trace_steps=value).trace_steps == value


@pytest.mark.parametrize(
    ("endpoint", "asked", "level"),
    [(None, None, 0), ("http://localhost:4317", None, 1), ("http://localhost:4317", 0, 0), (None, 3, 3)],
)
def test_the_level_a_run_starts_with(endpoint: str | None, asked: int | None, level: int) -> None:
    assert ObservabilityConfig(otlp_traces_endpoint=endpoint, trace_level=asked).level == level
