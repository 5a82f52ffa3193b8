from __future__ import annotations

from typing import Any

import msgspec
import pytest

from vllm_lite import PoolingParams
from vllm_lite.exceptions import VLLMValidationError


@pytest.mark.parametrize(
    ("field", "value"), [("task", "classify"), ("pooling_type", "max"), ("normalize", 1), ("output_kind", 2)]
)
def test_a_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(VLLMValidationError, match=rf"^{field} must be "):
        PoolingParams(**{field: value})


def test_it_crosses_a_border_and_clones() -> None:
    params = PoolingParams(pooling_type="mean", normalize=False)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=PoolingParams) == params
    assert params.clone() == params
    assert params.clone() is not params
