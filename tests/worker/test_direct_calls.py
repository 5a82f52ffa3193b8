from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, CohereConfig, GPTNeoXConfig, LlamaConfig, Qwen3Config
from transformers.models.cohere.modeling_cohere import apply_rotary_pos_emb as rotate_pairs
from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb as rotate_part
from transformers.models.gpt_oss.modeling_gpt_oss import apply_rotary_pos_emb as rotate_by_halves
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as rotate

from vllm_lite.worker.direct_calls import FewerKernels, call_directly

SIZES = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def parts(count: int, dtype: torch.dtype, heads: tuple[int, ...] = (6, 2), width: int = 16) -> list[torch.Tensor]:
    """Queries, keys, cosines and sines of `count` tokens; queries and keys of one product."""
    generator = torch.Generator().manual_seed(count)
    both = torch.randn(1, count, sum(heads), width, generator=generator).to(dtype).transpose(1, 2)
    angles = torch.randn(1, count, width // 2, generator=generator).repeat(1, 1, 2)
    return [both[:, : heads[0]], both[:, heads[0] :], angles.cos().to(dtype), angles.sin().to(dtype)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("count", [1, 2, 33])
@pytest.mark.parametrize("apart", [False, True])
def test_a_rotation_gives_the_same_bits(count: int, dtype: torch.dtype, apart: bool) -> None:
    instead = FewerKernels(rotate)
    assert instead.agrees(dtype)
    q, k, cos, sin = parts(count, dtype)
    if apart:
        k = k.clone()
    before = [tensor.clone() for tensor in (q, k, cos, sin)]
    for _ in range(2):  # as in two layers
        for ours, theirs in zip(instead(q, k, cos, sin), rotate(q, k, cos, sin), strict=True):
            assert torch.equal(ours, theirs)
            assert ours.shape == theirs.shape
    assert all(torch.equal(tensor, old) for tensor, old in zip((q, k, cos, sin), before, strict=True))


def test_what_is_not_meant_goes_to_the_original() -> None:
    q, k, cos, sin = parts(5, torch.float32)
    rest = torch.ones(1, 6, 5, 8), torch.ones(1, 2, 5, 8)
    long = [torch.cat(pair, dim=-1) for pair in zip((q, k), rest, strict=True)]
    for ours, theirs in zip(FewerKernels(rotate_part)(*long, cos, sin), rotate_part(*long, cos, sin), strict=True):
        assert torch.equal(ours, theirs)
    turned = q.transpose(1, 2), k.transpose(1, 2)
    for ours, theirs in zip(FewerKernels(rotate)(*turned, cos, sin, 2), rotate(*turned, cos, sin, 2), strict=True):
        assert torch.equal(ours, theirs)


def test_another_rotation_is_told_apart() -> None:
    assert not FewerKernels(rotate_pairs).agrees(torch.float32)
    assert not FewerKernels(rotate_by_halves).agrees(torch.float32)
    assert not FewerKernels(lambda q, cos, sin: (q, q)).agrees(torch.float32)


@pytest.mark.parametrize(
    ("config", "rotating"),
    [
        (LlamaConfig(**SIZES), 2),
        (Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8), 2),
        (GPTNeoXConfig(**SIZES), 2),
        (CohereConfig(**SIZES), 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_model_computes_the_same_bits(config: Any, rotating: int) -> None:
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config).eval()
    tokens = torch.arange(10)[None]
    with torch.inference_mode():
        expected = model(tokens, use_cache=False).logits
        kinds = [type(module) for module in model.modules()]
        assert call_directly(model) == rotating
        assert torch.equal(model(tokens, use_cache=False).logits, expected)
    assert [type(module).__name__ for module in model.modules()] == [kind.__name__ for kind in kinds]
    assert all(isinstance(module, kind) for module, kind in zip(model.modules(), kinds, strict=True))


def test_modules_with_hooks_keep_them() -> None:
    model: Any = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES)).eval()
    seen = []
    model.model.layers[1].mlp.register_forward_hook(lambda *_: seen.append("mlp"))
    call_directly(model)
    model.model.register_forward_hook(lambda *_: seen.append("model"))
    with torch.inference_mode():
        model(torch.arange(3)[None], use_cache=False)
    assert seen == ["mlp", "model"]
