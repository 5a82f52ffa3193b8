"""Which model, and what its own files say about it.

Process: all. Knows: the folder's config.json and generation_config.json as plain dictionaries. Does not know: transformers
or torch (in transformers 5 AutoConfig imports torch, and the front end must not).
Mirrors: vllm/config/model.py
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_lite.config.checks import check_bool, check_choice, check_int, check_text, refuse
from vllm_lite.exceptions import UnsupportedModelError

DTYPES = ("auto", "float16", "bfloat16", "float32", "float64")
ATTENTION_BACKENDS = ("auto", "torch_sdpa", "triton")
DEFAULT_MAX_MODEL_LEN = 2048


@dataclass
class ModelConfig:
    """The model's folder and its limits.

    `model` is what the user typed; `model_path` is the local folder it resolved to (see `config.model_files`). `hf_config` and
    `generation_config` are the folder's JSON files. `max_model_len` counts prompt and answer tokens together.
    """

    model: str
    model_path: str = ""
    tokenizer: str | None = None
    served_model_name: str | None = None
    dtype: str = "auto"
    seed: int = 0
    max_model_len: int | None = None
    max_logprobs: int = 20
    skip_tokenizer_init: bool = False
    enforce_eager: bool = False
    hf_config: dict[str, Any] = field(default_factory=dict)
    generation_config: dict[str, Any] = field(default_factory=dict)
    attention_backend: str = "auto"
    compile: bool = False

    def __post_init__(self) -> None:
        check_text("model", self.model, "text")
        check_text("tokenizer", self.tokenizer, "text", optional=True)
        check_text("served_model_name", self.served_model_name, "text", optional=True)
        check_choice("dtype", self.dtype, DTYPES)
        check_int("seed", self.seed, 0, 2**63 - 1)
        check_int("max_logprobs", self.max_logprobs, -1)
        check_choice("attention_backend", self.attention_backend, ATTENTION_BACKENDS)
        check_bool("skip_tokenizer_init", self.skip_tokenizer_init)
        check_bool("enforce_eager", self.enforce_eager)
        check_bool("compile", self.compile)
        if self.compile and self.enforce_eager:
            raise refuse("compile", True, "False with enforce_eager, which runs every step op by op")
        check_int("max_model_len", self.max_model_len, 1, optional=True)
        if self.model_path and not self.hf_config:
            self.hf_config = _read_json(Path(self.model_path) / "config.json", required=True)
            self.generation_config = _read_json(Path(self.model_path) / "generation_config.json", required=False)
        if self.hf_config:
            self._settle_max_model_len()

    @property
    def text_config(self) -> dict[str, Any]:
        """The language model's part of config.json (multimodal configs nest it)."""
        nested = self.hf_config.get("text_config")
        return nested if isinstance(nested, dict) else self.hf_config

    @property
    def vocab_size(self) -> int:
        """Rows of the output projection; token ids are in [0, vocab_size)."""
        return int(self.text_config["vocab_size"])

    @property
    def eos_token_ids(self) -> list[int]:
        """Every id that ends an answer: generation_config.json's, else config.json's. The first is the primary one."""
        value = self.generation_config.get("eos_token_id", self.text_config.get("eos_token_id"))
        if value is None:
            return []
        return [int(v) for v in value] if isinstance(value, list) else [int(value)]

    def _settle_max_model_len(self) -> None:
        limit = self.text_config.get("max_position_embeddings") or self.text_config.get("n_positions")
        if self.max_model_len is None:
            self.max_model_len = int(limit) if limit else DEFAULT_MAX_MODEL_LEN
        elif limit and self.max_model_len > int(limit):
            raise refuse("max_model_len", self.max_model_len, f"<= {limit}, the positions this model was made for")


def _read_json(path: Path, *, required: bool) -> dict[str, Any]:
    if not path.exists():
        if required:
            raise UnsupportedModelError(
                f"{path.parent} has no {path.name}: give --model a folder in the Hugging Face layout "
                "(config.json, tokenizer.json, *.safetensors), a hub id, or 'tiny'"
            )
        return {}
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnsupportedModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise UnsupportedModelError(f"{path} does not hold a JSON object")
    return loaded
