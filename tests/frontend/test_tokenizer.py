"""The tokenizer reads what transformers writes, and its table says of each token what `decode` says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from tests.frontend.helpers import piece_tokenizer, save_tokenizer, word_tokenizer
from vllm_lite.config import ModelConfig
from vllm_lite.exceptions import UnsupportedModelError
from vllm_lite.frontend.tokenizer import Tokenizer

TEXTS = ["", "hello", "  two  spaces ", "naïve 日本語 😀", "<|im_start|>user\nhi<|im_end|>", "a\x00b\r\n\t"]


def by_table(tokenizer: Tokenizer, ids: list[int], skip: bool) -> str:
    pieces = [tokenizer.pieces(skip)[i] for i in ids]
    return b"".join(piece if isinstance(piece, bytes) else piece.encode() for piece in pieces).decode(errors="replace")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("model", ["tiny_model_path", "smollm2_path"])
def test_encodes_and_decodes_as_transformers_does(request: pytest.FixtureRequest, model: str, text: str) -> None:
    folder = request.getfixturevalue(model)
    ours, theirs = Tokenizer(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    ids = ours.encode(text)
    assert ids == theirs(text).input_ids
    for skip in (True, False):
        assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("model", ["tiny_model_path", "smollm2_path"])
def test_chat_messages_become_the_text_that_transformers_makes(request: pytest.FixtureRequest, model: str) -> None:
    folder = request.getfixturevalue(model)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    for prompt in (True, False):
        expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        assert Tokenizer(folder).chat_templates.render(messages, add_generation_prompt=prompt) == expected


def test_end_token_and_size(tiny_tokenizer: Tokenizer) -> None:
    assert tiny_tokenizer.eos_token_id == 257
    assert tiny_tokenizer.vocab_size == 260
    assert tiny_tokenizer.special_tokens == {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<eos>"}


@pytest.mark.parametrize("skip", [True, False])
@settings(deadline=None)
@given(st.lists(st.integers(0, 340), max_size=12))
def test_the_table_equals_decode(tiny_tokenizer: Tokenizer, skip: bool, ids: list[int]) -> None:
    assert by_table(tiny_tokenizer, ids, skip) == tiny_tokenizer.decode(ids, skip)


def test_the_table_knows_words_split_characters_and_added_tokens(tmp_path: Path) -> None:
    tokenizer, ids = word_tokenizer(tmp_path, [" word", "日"])
    backend = Backend.from_file(str(tmp_path / "tokenizer.json"))
    backend.add_tokens(
        [AddedToken("<tool>", special=False), AddedToken("<日>", special=False), AddedToken("<é>", special=False)]
    )
    tokenizer = save_tokenizer(tmp_path, backend, {"eos_token": "<eos>"})
    skipped = tokenizer.pieces(skip_special_tokens=True)
    eos = tokenizer.eos_token_id
    assert eos is not None
    assert [skipped[i] for i in (ids[" word"], ids["日"], 0xE6, eos, 10_000)] == [" word", "日", b"\xe6", "", ""]
    assert tokenizer.pieces(skip_special_tokens=False)[eos] == "<eos>"
    for added in range(eos + 1, eos + 4):
        for sequence in ([added], [65, added, 65]):
            assert by_table(tokenizer, sequence, skip=True) == tokenizer.decode(sequence)


def test_which_tokenizers_are_byte_level(tiny_tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert tiny_tokenizer.is_byte_level
    assert not piece_tokenizer(tmp_path, ["▁a"])[0].is_byte_level


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [104, 105]),
        ({"add_bos_token": True}, [256, 104, 105]),
        ({"add_eos_token": True, "add_bos_token": True}, [256, 104, 105, 257]),
        ({"add_bos_token": False}, [104, 105]),
    ],
)
def test_settings_that_frame_a_text(tiny_model_path: Path, tmp_path: Path, asked: dict[str, bool], expected: list[int]) -> None:
    shutil.copy(tiny_model_path / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": {"content": "<bos>"}, "eos_token": "<eos>", **asked})
    )
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.encode("hi") == expected
    assert tokenizer.encode("hi", add_special_tokens=False) == [104, 105]


def test_a_frame_token_that_does_not_exist(tiny_model_path: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_model_path / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<none>", "add_bos_token": True}))
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.json does not have"):
        Tokenizer(tmp_path)


def test_truncation_that_a_file_asks_for_is_not_done(tiny_model_path: Path, tmp_path: Path) -> None:
    backend = Backend.from_file(str(tiny_model_path / "tokenizer.json"))
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    assert len(save_tokenizer(tmp_path, backend, {}).encode("hello")) == 5


def test_templates_from_every_place(tiny_model_path: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_model_path / "tokenizer.json", tmp_path)
    listed = [{"name": "default", "template": "listed"}, {"name": "rag", "template": "rag"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed}))
    hi = [{"role": "user", "content": "hi"}]
    assert Tokenizer(tmp_path).chat_templates.render(hi) == "listed"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert Tokenizer(tmp_path).chat_templates.render(hi) == "json"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert Tokenizer(tmp_path).chat_templates.render(hi) == "file"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert Tokenizer(tmp_path).chat_templates.render(hi, tools=[{}]) == "tools"


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"has no tokenizer\.json"):
        Tokenizer(tmp_path)


def test_a_tokenizer_from_elsewhere(tiny_model_path: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_config(ModelConfig("m", model_path=str(tiny_model_path)))
    assert tokenizer.encode("a") == [97]
    other = word_tokenizer(tmp_path, ["a"], special=("<end>",))[0]
    named = Tokenizer.from_config(ModelConfig("m", model_path=str(tiny_model_path), tokenizer=str(tmp_path)))
    assert named.special_tokens == other.special_tokens == {"eos_token": "<end>"}
