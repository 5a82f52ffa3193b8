"""A tiny Llama of seeded random weights with a byte-level tokenizer: a real model for tests and first tries, no download.

Process: front end (and tests). Knows: the Hugging Face folder layout, tensor names and shapes. Does not know: torch; arrays
are numpy. Token ids 0 to 255 are the bytes, so ids of a text are its UTF-8 bytes and any answer has some text.
Mirrors: nothing in vLLM.
"""

import json
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

VOCAB_SIZE = 320  # 256 bytes, 4 special tokens, and spare rows as padded vocabularies have them
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 64, 4, 4, 2, 16, 128
SPECIAL_TOKENS = {"<bos>": 256, "<eos>": 257, "<|im_start|>": 258, "<|im_end|>": 259}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_model(folder: Path, seed: int = 0) -> None:
    """Write config.json, generation_config.json, tokenizer.json, tokenizer_config.json and model.safetensors to `folder`.

    The same seed gives the same weights: float32, 0.8 MB. The folder is made where it is missing.
    """
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", _config())
    eos = [SPECIAL_TOKENS["<eos>"], SPECIAL_TOKENS["<|im_end|>"]]
    _write_json(folder / "generation_config.json", {"bos_token_id": 256, "eos_token_id": eos, "do_sample": False})
    _write_tokenizer(folder)
    save_file(_weights(np.random.default_rng(seed)), folder / "model.safetensors", metadata={"format": "pt"})


def _config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": SPECIAL_TOKENS["<bos>"],
        "eos_token_id": SPECIAL_TOKENS["<eos>"],
        "dtype": "float32",
    }


def _weights(rng: np.random.Generator) -> dict[str, npt.NDArray[np.float32]]:
    """Every tensor of the model by its Hugging Face name; matrices are [out, in]."""

    def matrix(rows: int, columns: int, gain: float = 1.0) -> npt.NDArray[np.float32]:
        return (rng.standard_normal((rows, columns)) * (gain / math.sqrt(columns))).astype(np.float32)

    ones = np.ones(HIDDEN, dtype=np.float32)
    tensors = {"model.embed_tokens.weight": rng.standard_normal((VOCAB_SIZE, HIDDEN)).astype(np.float32)}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        tensors[f"{name}.input_layernorm.weight"] = ones.copy()
        # Sharp attention makes each token depend on what lies far back, so that a wrong KV block shows as a wrong token.
        tensors[f"{name}.self_attn.q_proj.weight"] = matrix(HEADS * HEAD_DIM, HIDDEN, gain=2.0)
        tensors[f"{name}.self_attn.k_proj.weight"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN, gain=2.0)
        tensors[f"{name}.self_attn.v_proj.weight"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN)
        tensors[f"{name}.self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * HEAD_DIM, gain=2.0)
        tensors[f"{name}.post_attention_layernorm.weight"] = ones.copy()
        tensors[f"{name}.mlp.gate_proj.weight"] = matrix(INTERMEDIATE, HIDDEN)
        tensors[f"{name}.mlp.up_proj.weight"] = matrix(INTERMEDIATE, HIDDEN)
        tensors[f"{name}.mlp.down_proj.weight"] = matrix(HIDDEN, INTERMEDIATE)
    tensors["model.norm.weight"] = ones.copy()
    head = matrix(VOCAB_SIZE, HIDDEN, gain=3.0)
    head[256 + len(SPECIAL_TOKENS) :] = 0.0  # the spare ids stay unlikely, and so do the
    head[[byte for byte in (*range(32), 127) if byte != ord("\n")]] = 0.0  # bytes that would steer a terminal
    tensors["lm_head.weight"] = head
    return tensors


def _write_tokenizer(folder: Path) -> None:
    """A byte-level BPE without merges, whose id of a byte is the byte."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<eos>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def byte_symbols() -> list[str]:
    """The printable character that stands for each byte in byte-level vocabularies.

    Source: the byte-to-unicode table of GPT-2's encoder. Printable Latin-1 characters stand for themselves; the other bytes, in
    order, are the characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
