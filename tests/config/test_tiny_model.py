from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from vllm_lite.config import ModelConfig
from vllm_lite.config.tiny_model import CHAT_TEMPLATE, SPECIAL_TOKENS, write_tiny_model


def test_the_folder_has_all_an_engine_reads(tiny_model_path: Path) -> None:
    names = {path.name for path in tiny_model_path.iterdir()}
    assert names == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
    }
    model = ModelConfig("tiny", model_path=str(tiny_model_path))
    assert (model.vocab_size, model.max_model_len, model.eos_token_ids) == (320, 4096, [257, 259])


def test_the_same_seed_gives_the_same_weights(tmp_path: Path, tiny_model_path: Path) -> None:
    write_tiny_model(tmp_path / "again", seed=0)
    write_tiny_model(tmp_path / "other", seed=1)
    folders = (tiny_model_path, tmp_path / "again", tmp_path / "other")
    first, again, other = (load_file(folder / "model.safetensors") for folder in folders)
    assert first.keys() == again.keys() == other.keys()
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["lm_head.weight"], other["lm_head.weight"])


def test_weights_have_the_shapes_the_config_promises(tiny_model_path: Path) -> None:
    tensors = load_file(tiny_model_path / "model.safetensors")
    assert len(tensors) == 3 + 4 * 9
    assert {t.dtype for t in tensors.values()} == {np.dtype(np.float32)}
    assert tensors["model.embed_tokens.weight"].shape == tensors["lm_head.weight"].shape == (320, 64)
    assert tensors["model.layers.3.self_attn.k_proj.weight"].shape == (2 * 16, 64)
    assert tensors["model.layers.0.mlp.down_proj.weight"].shape == (64, 128)


def test_ids_that_would_steer_a_terminal_are_unlikely(tiny_model_path: Path) -> None:
    head = load_file(tiny_model_path / "model.safetensors")["lm_head.weight"]
    silent = np.flatnonzero(~head.any(axis=1)).tolist()
    assert silent == [*range(10), *range(11, 32), 127, *range(260, 320)]


@pytest.mark.parametrize("text", ["Hello", " a  b\n\tc", "wörld", "漢字", "🙂", "\x00\x7f\xff"])
def test_ids_are_the_bytes_of_the_text(tiny_model_path: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_model_path / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_special_tokens_are_single_ids_and_leave_no_text(tiny_model_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_model_path / "tokenizer.json"))
    assert tokenizer.encode("".join(SPECIAL_TOKENS)).ids == [256, 257, 258, 259]
    assert tokenizer.decode([104, 257, 105]) == "hi"
    assert tokenizer.id_to_token(260) is None


def test_the_chat_template_is_chatml(tiny_model_path: Path) -> None:
    from jinja2 import Template

    stored = json.loads((tiny_model_path / "tokenizer_config.json").read_text())["chat_template"]
    assert stored == CHAT_TEMPLATE
    rendered = Template(stored).render(messages=[{"role": "user", "content": "hi"}], add_generation_prompt=True)
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
