"""Stock architectures run exactly as transformers runs them, and what cannot be served is refused with a reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.worker.driver import Driver, greedy, make_config
from tests.worker.reference import generate, load_reference, logprobs
from vllm_lite.exceptions import UnsupportedModelError
from vllm_lite.worker.attention.interface import ATTENTION_NAME
from vllm_lite.worker.probe import probe_model
from vllm_lite.worker.worker import Worker

SIZES = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 12},
    "gemma": {},
    "gemma2": {"sliding_window": 12, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0, "query_pre_attn_scalar": 8},
    "gemma3_text": {"sliding_window": 12, "query_pre_attn_scalar": 8},
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128},
    "gpt_neox": {},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "phi3": {},
    "olmo2": {},
    "granite": {},
    "starcoder2": {},
    "stablelm": {},
    "cohere2": {"sliding_window": 12},
    "gpt_oss": {"sliding_window": 12, "num_local_experts": 4, "num_experts_per_tok": 2},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": EXPERTS,
    "qwen2_moe": {"sliding_window": 12, "use_sliding_window": True, "max_window_layers": 1, **EXPERTS},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 12,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
}


def make_model(folder: Path, kind: str, **values: Any) -> Path:
    """A folder with random weights of `kind`, large enough in scale for answers to vary."""
    config = AutoConfig.for_model(kind, **{**SIZES, **values})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
        for parameter in model.parameters():
            parameter.data.mul_(1.0 if parameter.dim() == 1 else 8.0)
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.data.normal_()
    model.save_pretrained(folder)
    return folder


def make_driver(folder: Path, max_model_len: int = 64) -> Driver:
    return Driver(make_config(folder, block_size=4, max_model_len=max_model_len))


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_tokens_equal_generate(kind: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path / kind, kind, **ARCHITECTURES[kind])
    reference, driver = load_reference(folder, "float64"), make_driver(folder)
    asked = {
        "short": [5, 9, 77],
        "long": [(7 * i) % 120 + 3 for i in range(33)],
        "middle": [(5 * i) % 99 + 4 for i in range(20)],
    }
    for name, prompt in asked.items():
        driver.add(name, prompt, greedy(logprobs=-1))
    scores: dict[str, list[np.ndarray]] = {name: [] for name in asked}
    while any(len(driver.requests[name].answer) < 12 for name in asked):
        counts = {name: min(driver.left(name), 15) for name in asked}
        output = driver.step(counts)
        for name, lists in zip(output.req_ids, output.logprobs or [], strict=False):
            if lists is not None:
                scores[name].append(lists.logprobs[0][1:][np.argsort(lists.logprob_token_ids[0][1:])])
    for name, prompt in asked.items():
        tokens = driver.requests[name].tokens
        assert tokens[: len(prompt) + 12] == prompt + generate(reference, prompt, 12)
        expected = logprobs(reference, tokens)[len(prompt) - 1 : -1]
        np.testing.assert_allclose(np.stack(scores[name]), expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_prepacked_float32_agrees_with_the_model(kind: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path / kind, kind, **ARCHITECTURES[kind])
    driver = Driver(make_config(folder, dtype="float32", block_size=4, max_model_len=64))
    prompt = [(7 * i) % 120 + 3 for i in range(33)]
    driver.add("r", prompt, greedy(prompt_logprobs=0))
    first, second = (driver.step({"r": count}).prompt_logprobs["r"].logprobs for count in (20, 13))
    expected = logprobs(load_reference(folder, "float64"), prompt)[:-1].gather(1, torch.tensor(prompt[1:])[:, None])
    np.testing.assert_allclose(np.concatenate([first, second]), expected, atol=0.02)


LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 32,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "attention of its own": ("bloom", {}, "0 of the 3 layers of bloom"),
    "state space": ("mamba", {"state_size": 4}, "'linear_attention'"),
    "convolutions": ("lfm2", {"layer_types": ["conv", "full_attention", "conv"]}, "'conv'"),
    "chunks": ("llama4_text", {"attention_chunk_size": 16, **EXPERTS}, "--max-model-len to at most 16"),
    "window in a mask": ("phimoe", {"sliding_window": 16, "num_local_experts": 4}, "sliding window of 16"),
    "changing RoPE": (
        "phi3",
        {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 32},
        "once one request passes 32 tokens",
    ),
    "encoder": ("t5", {"d_model": 32, "d_kv": 8, "num_layers": 1}, "encoder-decoder"),
    "shared keys": ("gemma3n_text", {"num_kv_shared_layers": 1}, "share their keys"),
    "many modes": ("gemma3", {"text_config": SIZES}, "multimodal"),
    "quantised": ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_refused_with_a_reason(name: str, tmp_path: Path) -> None:
    kind, values, reason = REFUSED[name]
    AutoConfig.for_model(kind, **{**SIZES, **values}).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=re.escape(reason)):
        Worker(make_config(tmp_path, load_format="dummy", max_model_len=128))


@pytest.mark.parametrize("name", ["chunks", "window in a mask", "changing RoPE"])
def test_a_limit_that_cannot_be_reached_is_no_reason(name: str, tmp_path: Path) -> None:
    kind, values, _ = REFUSED[name]
    AutoConfig.for_model(kind, **{**SIZES, **values}).save_pretrained(tmp_path)
    worker = Worker(make_config(tmp_path, load_format="dummy", max_model_len=16))
    assert {spec.sliding_window for spec in worker.get_kv_cache_specs().values()} == {None}


class Meddled:
    """A model whose calls carry more keywords than they should."""

    def __init__(self, model: Any, **extra: Any) -> None:
        self._model, self._extra = model, extra

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._model(*args, **kwargs, **self._extra)


def tiny(**values: Any) -> Any:
    config = AutoConfig.for_model("llama", **{**SIZES, **values})
    return AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION_NAME)


def test_attention_that_is_not_plainly_causal_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="depends on 'position_bias'"):
        probe_model(Meddled(tiny(), position_bias=torch.zeros(1)), 64)
    with pytest.raises(UnsupportedModelError, match="is not causal"):
        probe_model(Meddled(tiny(), is_causal=False), 64)
    with pytest.raises(UnsupportedModelError, match="mask of its own"):
        probe_model(Meddled(tiny(), attention_mask=torch.zeros(1, 1, 2, 2)), 64)
    with pytest.raises(UnsupportedModelError, match="does not take a flat batch"):
        probe_model(Meddled(tiny(), use_cache=True), 64)


def test_a_layer_used_twice_is_refused() -> None:
    model = tiny()
    model.model.layers[1] = model.model.layers[0]
    with pytest.raises(UnsupportedModelError, match="2 of the 3 layers"):
        probe_model(model, 64)


def test_each_layers_cache_is_found(tmp_path: Path) -> None:
    worker = make_driver(make_model(tmp_path / "a", "deepseek_v3", **ARCHITECTURES["deepseek_v3"])).worker
    spec = worker.get_kv_cache_specs()["model.layers.2.self_attn"]
    assert (spec.num_kv_heads, spec.head_size, spec.head_size_v, spec.dtype, spec.block_size) == (4, 24, 12, "float64", 4)
    worker = make_driver(make_model(tmp_path / "b", "gemma2", **ARCHITECTURES["gemma2"])).worker
    assert [spec.sliding_window for spec in worker.get_kv_cache_specs().values()] == [12, None, 12]
