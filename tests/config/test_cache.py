from __future__ import annotations

from typing import Any

import pytest

from vllm_lite.config import CacheConfig
from vllm_lite.exceptions import VLLMValidationError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_size", 0),
        ("block_size", 16.0),
        ("gpu_memory_utilization", 0),
        ("gpu_memory_utilization", 1.01),
        ("gpu_memory_utilization", float("nan")),
        ("enable_prefix_caching", 1),
        ("kv_cache_memory_bytes", 0),
        ("kv_cache_memory_bytes", "1G"),
        ("num_gpu_blocks_override", 1),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(VLLMValidationError, match=rf"^{field} must be ") as caught:
        CacheConfig(**{field: value})
    assert caught.value.parameter == field


def test_defaults_and_edges() -> None:
    assert CacheConfig(gpu_memory_utilization=1, num_gpu_blocks_override=2, kv_cache_memory_bytes=1).block_size == 16
    assert CacheConfig().num_gpu_blocks is None
