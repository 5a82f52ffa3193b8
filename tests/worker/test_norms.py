from __future__ import annotations

import pytest
import torch
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.llama4.modeling_llama4 import Llama4TextRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from vllm_lite.worker.norms import SMALL_BYTES, RowNorm, replace_norms

WIDTH = 64
MANY = SMALL_BYTES // WIDTH  # more than SMALL_BYTES in each dtype


class TrimmedRMSNorm(LlamaRMSNorm):
    """Its name and its weight are those of an RMSNorm, its arithmetic is not."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states.clamp(-3, 3))


def replaced(kind: type[torch.nn.Module], dtype: torch.dtype, eps: float = 1e-5) -> tuple[torch.nn.Module, torch.nn.Module]:
    """A norm with a random weight, and what takes its place."""
    norm = kind(WIDTH, eps)
    with torch.no_grad():
        norm.weight.normal_(generator=torch.Generator().manual_seed(1))
    model = torch.nn.Sequential(norm.to(dtype))
    replace_norms(model)
    return norm, model[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, WIDTH), (1, 7, WIDTH), (1, MANY, WIDTH), (1, MANY // 4, 4, WIDTH)])
@pytest.mark.parametrize("kind", [LlamaRMSNorm, Llama4TextRMSNorm])
def test_results_equal_transformers_own(kind: type[torch.nn.Module], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    norm, instead = replaced(kind, dtype)
    assert type(instead) is RowNorm
    assert instead.weight is norm.weight
    with torch.inference_mode():
        x = torch.randn(shape, generator=torch.Generator().manual_seed(2)).mul_(3)
        x[..., 5] *= 10_000  # as in real models, one number may be much larger than all others
        for size in (1, 1e-4):
            ours, theirs = instead((x * size).to(dtype)), norm((x * size).to(dtype))
            assert ours.shape == theirs.shape
            assert ours.dtype == dtype
            if dtype == torch.bfloat16:  # equal but for numbers on the edge of two roundings
                assert (ours != theirs).float().mean() < 5e-3
            torch.testing.assert_close(ours, theirs, rtol=2e-6 if dtype == torch.float32 else 2**-7, atol=1e-7)


def test_a_slice_of_a_larger_tensor_is_not_changed() -> None:
    _, instead = replaced(LlamaRMSNorm, torch.float32)
    with torch.inference_mode():
        whole = torch.randn(1, MANY, 3 * WIDTH)
        before = whole.clone()
        part = whole[..., WIDTH : 2 * WIDTH]
        torch.testing.assert_close(instead(part), instead(part.contiguous()))
        assert torch.equal(whole, before)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (Gemma3RMSNorm, torch.float32),
        (Gemma3RMSNorm, torch.bfloat16),
        (Olmo2RMSNorm, torch.bfloat16),  # multiplies before it rounds
        (TrimmedRMSNorm, torch.float32),
        (LlamaRMSNorm, torch.float64),  # computes in float32 all the same
        (torch.nn.LayerNorm, torch.float32),
    ],
)
def test_what_computes_something_else_stays(kind: type[torch.nn.Module], dtype: torch.dtype) -> None:
    norm, instead = replaced(kind, dtype)
    assert instead is norm


class GatedRMSNorm(LlamaRMSNorm):
    def forward(self, hidden_states: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(hidden_states * gate)


def test_norms_of_another_form_are_left_alone() -> None:
    strange = [torch.nn.RMSNorm(WIDTH), torch.nn.RMSNorm(WIDTH, elementwise_affine=False), GatedRMSNorm(WIDTH)]
    model = torch.nn.ModuleList(strange)
    replace_norms(model)
    assert list(model) == strange
