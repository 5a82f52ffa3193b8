from __future__ import annotations

from typing import Any

import pytest

from vllm_lite.config import ParallelConfig
from vllm_lite.exceptions import VLLMValidationError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("data_parallel_size", 0),
        ("data_parallel_rank", 1),
        ("data_parallel_rank", -1),
        ("world_size", 0),
        ("distributed_executor_backend", "ray"),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(VLLMValidationError, match=rf"^{field} must be ") as caught:
        ParallelConfig(**{field: value})
    assert caught.value.parameter == field


def test_the_last_rank_is_the_size_less_one() -> None:
    assert ParallelConfig(data_parallel_size=2, data_parallel_rank=1).data_parallel_rank == 1
