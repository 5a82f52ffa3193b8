from __future__ import annotations

from typing import Any

import pytest
import torch

from vllm_lite.worker import prepack
from vllm_lite.worker.device import bfloat16_is_native
from vllm_lite.worker.prepack import PrepackedLinear, prepack_linears


class Special(torch.nn.Linear):
    """A subclass may compute something else."""


class Block(torch.nn.Module):
    """Linears as in a transformer's layer; `meddle` changes the order or the inputs of their calls."""

    def __init__(self, bias: dict[str, bool], meddle: str = "") -> None:
        super().__init__()
        for name, width in {"q_proj": 24, "k_proj": 8, "v_proj": 8, "gate_proj": 16, "up_proj": 16}.items():
            setattr(self, name, torch.nn.Linear(24, width, bias=bias.get(name, False)))
        self.down_proj = torch.nn.Linear(16, 24)
        self.special = Special(24, 24)
        self.meddle = meddle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        again = x.clone() * 2 if self.meddle == "inputs" else x
        if self.meddle == "order":
            k, q, v = self.k_proj(x), self.q_proj(x), self.v_proj(x)
        else:
            q, k, v = self.q_proj(x), self.k_proj(again), self.v_proj(x)
        x = x + q + torch.cat([k, v, k], dim=-1)
        return self.special(self.down_proj(self.gate_proj(x) * self.up_proj(x)))


def make_pair(dtype: torch.dtype, **options: Any) -> tuple[Block, Block, int]:
    """A block, the same block prepacked, and how many linears that were."""
    plain, packed = (Block(options.get("bias", {}), options.get("meddle", "")).to(dtype) for _ in range(2))
    packed.load_state_dict(plain.state_dict())
    prepack_linears(packed)
    return plain, packed, sum(isinstance(module, PrepackedLinear) for module in packed.modules())


@pytest.mark.parametrize("mkl", [True, False])
@pytest.mark.parametrize("rows", [1, 5, 64])
@pytest.mark.parametrize("bias", [{}, {"q_proj": True}, {"q_proj": True, "k_proj": True, "v_proj": True, "up_proj": True}])
@pytest.mark.parametrize("meddle", ["", "order", "inputs"])
def test_results_stay_the_same(
    rows: int, bias: dict[str, bool], meddle: str, mkl: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mkl and not torch.backends.mkl.is_available():
        pytest.skip("this torch has no MKL")
    monkeypatch.setattr(prepack, "mkl_is_quicker", lambda: mkl)
    plain, packed, count = make_pair(torch.float32, bias=bias, meddle=meddle)
    assert count == 6
    assert type(packed.special) is Special
    with torch.inference_mode():
        for _ in range(2):
            x = torch.randn(1, rows, 24)
            torch.testing.assert_close(packed(x), plain(x))


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch has no MKL")
def test_mkl_takes_any_number_of_rows_and_keeps_no_second_copy() -> None:
    weight, bias = torch.randn(48, 24), torch.randn(48)
    inputs = [torch.randn(rows, 24) for rows in (0, 1, 999, 2500)]
    expected = [torch.nn.functional.linear(x, weight, bias) for x in inputs]
    multiply = prepack.pack_for_mkl(weight, bias)
    weight.fill_(float("nan"))
    for x, result in zip(inputs, expected, strict=True):
        torch.testing.assert_close(multiply(x), result)


def test_bfloat16_where_the_cpu_knows_it() -> None:
    plain, packed, count = make_pair(torch.bfloat16)
    assert count == (6 if bfloat16_is_native() else 0)
    x = torch.randn(1, 7, 24, dtype=torch.bfloat16)
    with torch.inference_mode():
        torch.testing.assert_close(packed(x), plain(x), atol=0.05, rtol=0.05)


def test_other_dtypes_are_left_alone() -> None:
    for dtype in (torch.float64, torch.float16):
        assert make_pair(dtype)[2] == 0


def test_siblings_share_one_product_and_keep_no_activations() -> None:
    _, packed, _ = make_pair(torch.float32)
    q, k, v, gate = packed.q_proj, packed.k_proj, packed.v_proj, packed.gate_proj
    assert q._product is k._product is v._product
    assert gate._product is packed.up_proj._product
    assert gate._product is not q._product
    with torch.inference_mode():
        packed(torch.randn(1, 3, 24))
    assert (q._product._x, q._product._parts, gate._product._x, gate._product._parts) == (None, (), None, ())


def test_a_packed_layer_knows_its_size_and_has_no_parameter() -> None:
    _, packed, _ = make_pair(torch.float32)
    layer = packed.down_proj
    assert isinstance(layer, PrepackedLinear)
    assert (layer.in_features, layer.out_features, layer.packed_bytes) == (16, 24, 16 * 24 * 4)
    assert list(layer.parameters()) == []
