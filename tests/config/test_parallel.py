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
        ("distributed_executor_backend", "a module:Class"),
        ("distributed_executor_backend", 5),
        ("api_process_count", 0),
        ("api_process_rank", 1),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(VLLMValidationError, match=rf"^{field} must be ") as caught:
        ParallelConfig(**{field: value})
    assert caught.value.parameter == field


def test_the_last_rank_is_the_size_less_one() -> None:
    config = ParallelConfig(data_parallel_size=2, data_parallel_rank=1, data_parallel_external_lb=True)
    assert config.data_parallel_rank == 1
    assert list(config.engine_indexes) == [1]


def test_an_executor_of_ones_own_is_named_by_its_module() -> None:
    assert ParallelConfig(distributed_executor_backend="my.module:Outer.Class").engine_indexes == range(1)


def test_a_rank_has_no_effect_where_all_engine_cores_are_behind_one_front_end() -> None:
    with pytest.raises(VLLMValidationError, match="data_parallel_rank must be 0 without --data-parallel-external-lb"):
        ParallelConfig(data_parallel_size=2, data_parallel_rank=1)
