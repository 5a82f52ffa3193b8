from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.worker.driver import Driver, greedy, make_config
from vllm_lite.worker.convert_gguf import convert, main

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    _, _, layer, *rest = name.split(".")
    return f"blk.{layer}.{NAMES['.'.join(rest[:-1])]}.weight"


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp orders them for its RoPE: the halves of each head in turn."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


@pytest.fixture(scope="module")
def gguf_file(tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as a GGUF file of float32 tensors."""
    config = json.loads((tiny_model_path / "config.json").read_text())
    vocab = json.loads((tiny_model_path / "tokenizer.json").read_text())["model"]["vocab"]
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    tokens = sorted(vocab, key=vocab.get)
    tokens.append(tokens[0] + tokens[1])
    tokens += [f"<spare{i}>" for i in range(len(tokens), config["vocab_size"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges([f"{tokens[0]} {tokens[1]}"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in load_file(tiny_model_path / "model.safetensors").items():
        count = next((count for part, count in heads.items() if part in name), None)
        writer.add_tensor(gguf_name(name), tensor if count is None else interleaved(tensor, count))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_folder_holds_the_model_in_bfloat16(gguf_file: Path, tiny_model_path: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    convert(gguf_file, tmp_path / "out", seen.append)
    assert seen == [39] * 39
    found = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= set(
        found
    )
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["dtype"], config["model_type"], config["max_position_embeddings"]) == ("bfloat16", "llama", 4096)
    original, converted = (Driver(make_config(path, max_model_len=64)) for path in (tiny_model_path, tmp_path / "out"))
    logprobs = []
    for driver in (original, converted):
        driver.add("r", list(range(40)), greedy(prompt_logprobs=0))
        logprobs.append(driver.step({"r": 40}).prompt_logprobs["r"].logprobs)
    np.testing.assert_allclose(*logprobs, rtol=0.05)


def test_what_transformers_looks_up_is_put_back(gguf_file: Path, tmp_path: Path) -> None:
    before = gguf.GGUFReader, gguf.get_tensor_name_map, gguf.dequantize
    convert(gguf_file, tmp_path / "out")
    assert (gguf.GGUFReader, gguf.get_tensor_name_map, gguf.dequantize) == before


def test_an_interrupted_conversion_leaves_nothing(gguf_file: Path, tmp_path: Path) -> None:
    def interrupt(total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(gguf_file, tmp_path / "out", interrupt)
    assert list(tmp_path.iterdir()) == []


def test_other_files_in_the_folder_stay(gguf_file: Path, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mine")
    assert main([str(gguf_file), str(tmp_path)]) == 0
    assert (tmp_path / "note").read_text() == "mine"
    assert (tmp_path / "config.json").exists()


def test_a_file_that_is_no_gguf_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.gguf").write_text("no such thing")
    assert main([str(tmp_path / "x.gguf"), str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.endswith("x.gguf cannot be converted: ValueError: GGUF magic invalid\n")
    assert not (tmp_path / "out").exists()
