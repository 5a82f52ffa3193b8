from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_lite.config import ModelConfig
from vllm_lite.exceptions import UnsupportedModelError, VLLMValidationError


def folder_with(tmp_path: Path, config: Any, generation: dict[str, Any] | None = None) -> str:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return str(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dtype", "float8"),
        ("dtype", None),
        ("seed", -1),
        ("seed", 1.5),
        ("max_logprobs", -2),
        ("max_model_len", 0),
        ("max_model_len", "8k"),
        ("max_model_len", True),
        ("attention_backend", "xformers"),
        ("compile", "yes"),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(VLLMValidationError, match=rf"^{field} must be ") as caught:
        ModelConfig("m", **{field: value})
    assert caught.value.parameter == field


@pytest.mark.parametrize(
    ("config", "asked", "settled"),
    [
        ({"max_position_embeddings": 512}, None, 512),
        ({"max_position_embeddings": 512}, 100, 100),
        ({"max_position_embeddings": 512}, 512, 512),
        ({"n_positions": 1024}, None, 1024),
        ({"other": 1}, None, 2048),
        ({"other": 1}, 9999, 9999),
        ({"text_config": {"max_position_embeddings": 77}}, None, 77),
    ],
)
def test_max_model_len(tmp_path: Path, config: dict[str, Any], asked: int | None, settled: int) -> None:
    assert ModelConfig("m", model_path=folder_with(tmp_path, config), max_model_len=asked).max_model_len == settled


def test_max_model_len_beyond_the_models_positions(tmp_path: Path) -> None:
    path = folder_with(tmp_path, {"max_position_embeddings": 512})
    with pytest.raises(VLLMValidationError, match=r"^max_model_len must be <= 512, .*; got 513$"):
        ModelConfig("m", model_path=path, max_model_len=513)


@pytest.mark.parametrize(
    ("config", "generation", "eos"),
    [
        ({"eos_token_id": 2}, None, [2]),
        ({"eos_token_id": 2}, {"eos_token_id": [7, 8]}, [7, 8]),
        ({"eos_token_id": [3, 4]}, {}, [3, 4]),
        ({"bos_token_id": 1}, None, []),
        ({"text_config": {"eos_token_id": 5}}, None, [5]),
    ],
)
def test_eos_token_ids(tmp_path: Path, config: dict[str, Any], generation: dict[str, Any] | None, eos: list[int]) -> None:
    assert ModelConfig("m", model_path=folder_with(tmp_path, config, generation)).eos_token_ids == eos


def test_vocab_size_of_a_nested_config(tmp_path: Path) -> None:
    path = folder_with(tmp_path, {"vocab_size": 9, "text_config": {"vocab_size": 320}})
    assert ModelConfig("m", model_path=path).vocab_size == 320


def test_a_folder_without_config_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"has no config\.json: give --model a folder in the Hugging Face layout"):
        ModelConfig("m", model_path=str(tmp_path))


def test_a_config_that_is_no_object(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"config\.json does not hold a JSON object"):
        ModelConfig("m", model_path=folder_with(tmp_path, [1]))


def test_a_config_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{broken")
    with pytest.raises(UnsupportedModelError, match=r"config\.json is not JSON"):
        ModelConfig("m", model_path=str(tmp_path))


def test_a_decoded_config_does_not_read_the_folder_again() -> None:
    config = ModelConfig("m", model_path="/nowhere", hf_config={"vocab_size": 4, "max_position_embeddings": 8})
    assert (config.vocab_size, config.max_model_len) == (4, 8)


def test_what_is_compiled_does_not_run_op_by_op() -> None:
    with pytest.raises(VLLMValidationError, match="compile must be False with enforce_eager"):
        ModelConfig("m", compile=True, enforce_eager=True)
