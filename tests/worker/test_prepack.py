from __future__ import annotations

import pytest
import torch

from vllm_lite.worker.device import bfloat16_is_native
from vllm_lite.worker.prepack import PrepackedLinear, prepack_linears


class Special(torch.nn.Linear):
    """A subclass may compute something else."""


def make_model(dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(24, 40, bias=False), torch.nn.ReLU(), torch.nn.Linear(40, 8))
    return torch.nn.Sequential(inner, Special(8, 8)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_results_stay_the_same(dtype: torch.dtype, rows: int) -> None:
    if dtype == torch.bfloat16 and not bfloat16_is_native():
        assert prepack_linears(make_model(dtype)) == 0
        return
    model, packed = make_model(dtype), make_model(dtype)
    assert prepack_linears(packed) == 2
    assert type(packed[1]) is Special
    x = torch.randn(1, rows, 24, dtype=dtype)
    with torch.inference_mode():
        torch.testing.assert_close(packed(x), model(x))


def test_other_dtypes_are_left_alone() -> None:
    for dtype in (torch.float64, torch.float16):
        assert prepack_linears(make_model(dtype)) == 0


def test_a_packed_layer_knows_its_size_and_has_no_weight_parameter() -> None:
    model = make_model(torch.float32)
    prepack_linears(model)
    layer = model[0][2]
    assert isinstance(layer, PrepackedLinear)
    assert (layer.in_features, layer.out_features, layer.packed_bytes) == (40, 8, 40 * 8 * 4)
    assert [name for name, _ in layer.named_parameters()] == ["bias"]
