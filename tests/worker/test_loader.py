from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from vllm_lite.config import ModelConfig
from vllm_lite.exceptions import UnsupportedModelError
from vllm_lite.worker.device import bfloat16_is_native
from vllm_lite.worker.loader import finalize, load_weights, read_config, weights_bytes

CPU = torch.device("cpu")


def load(folder: Path, load_format: str = "auto", **options: Any) -> torch.nn.Module:
    model_config = ModelConfig(str(folder), model_path=str(folder), **options)
    return load_weights(model_config, read_config(model_config), load_format, CPU)


@pytest.fixture
def folder(tiny_model_path: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model to meddle with."""
    return Path(shutil.copytree(tiny_model_path, tmp_path / "model"))


def test_weights_are_the_folders(tiny_model_path: Path) -> None:
    model = load(tiny_model_path, dtype="float64")
    assert not model.training
    weights = load_file(tiny_model_path / "model.safetensors")
    parameters = dict(model.named_parameters())
    assert parameters.keys() == weights.keys()
    for name, value in weights.items():
        np.testing.assert_array_equal(parameters[name].detach().numpy(), value.astype(np.float64))


def test_dtype_auto_is_the_checkpoints(folder: Path) -> None:
    assert load(folder).dtype == torch.float32
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    assert load(folder).dtype == (torch.bfloat16 if bfloat16_is_native() else torch.float32)


def test_dummy_weights_come_from_the_seed_and_need_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    state = torch.get_rng_state()
    first, second, other = (load(folder, "dummy", seed=seed).get_input_embeddings().weight for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_missing_weights_are_refused_and_not_made_up(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedModelError, match=r"lacks 1 weights of the model, such as model\.layers\.1\.mlp\.up_proj"):
        load(folder)


def test_a_folder_without_safetensors_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModelError, match=r"has no \*\.safetensors: .* --load-format dummy"):
        load(folder)
    (folder / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(UnsupportedModelError, match=r"-m vllm_lite\.worker\.convert_gguf .*model\.gguf OUT_FOLDER"):
        load(folder)


def test_a_model_type_that_transformers_does_not_know_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "nonesuch", "vocab_size": 3}')
    with pytest.raises(UnsupportedModelError, match="knows no model type 'nonesuch'"):
        load(folder)


def test_a_model_that_generates_no_text_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "vit", "vocab_size": 3}')
    with pytest.raises(UnsupportedModelError, match="vit is not a text generation model"):
        load(folder)


def test_weights_bytes_count_what_is_kept(folder: Path) -> None:
    model = load(folder, dtype="float64")
    before = weights_bytes(model)
    assert before == 2 * sum(array.nbytes for array in load_file(folder / "model.safetensors").values())
    finalize(model, CPU)
    assert weights_bytes(model) == before
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_tied_projection_is_packed_as_a_copy(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    weights = load_file(folder / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"].nbytes
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model = load(folder)
    before = weights_bytes(model)
    finalize(model, CPU)
    assert weights_bytes(model) == before + embedding
