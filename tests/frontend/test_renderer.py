"""Every kind of prompt becomes token ids; whatever is none is refused by name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.frontend.helpers import ids, toy_config
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.frontend.renderer import Renderer, TokensInput
from vllm_lite.frontend.tokenizer import Tokenizer


@pytest.fixture
def renderer(tiny_model_path: Path) -> Renderer:
    return Renderer.from_config(toy_config(tiny_model_path))


HI = {"type": "token", "prompt_token_ids": [104, 105]}
CHAT = [{"role": "user", "content": "hi"}]
CHAT_TEXT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
CHAT_IDS = [258, *ids("user\nhi"), 259, 10, 258, *ids("assistant\n")]


@pytest.mark.parametrize(
    ("prompt", "rendered"),
    [
        ("hi", {**HI, "prompt": "hi"}),
        ([104, 105], HI),
        ((104, 105), HI),
        ([], {"type": "token", "prompt_token_ids": []}),  # the input processor says that it is empty
        ({"prompt": "hi"}, {**HI, "prompt": "hi"}),
        ({"prompt_token_ids": [104, 105]}, HI),
        ({"prompt_token_ids": [1], "prompt": "its text"}, {"type": "token", "prompt_token_ids": [1], "prompt": "its text"}),
        ({"prompt": "hi", "cache_salt": "s", "multi_modal_data": None}, {**HI, "prompt": "hi", "cache_salt": "s"}),
        (CHAT, {"type": "token", "prompt_token_ids": CHAT_IDS, "prompt": CHAT_TEXT}),
        ({**HI, "arrival_time": 2.5}, {**HI, "arrival_time": 2.5}),
    ],
)
def test_kinds_of_prompts(renderer: Renderer, prompt: Any, rendered: TokensInput) -> None:
    assert renderer.render(prompt) == rendered
    assert asyncio.run(renderer.render_async(prompt)) == rendered


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        (None, "prompt"),
        (7, "prompt"),
        (b"bytes", "prompt"),
        ([1, "a"], "prompt"),
        ([True], "prompt"),
        ([1.0], "prompt"),
        ([[1]], "prompt"),
        ([""], "prompt"),
        ("\ud800", "prompt"),
        ({}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": "a", "multi_modal_data": {"image": 1}}, "prompt"),
        ({"prompt_embeds": [1.0]}, "prompt"),
        ({"prompt": "a", "surprise": 1}, "prompt"),
        ({"prompt_token_ids": "abc"}, "prompt_token_ids"),
        ({"prompt_token_ids": [1], "cache_salt": 5}, "cache_salt"),
        ({"type": "multimodal", "prompt_token_ids": [1]}, "prompt type"),
        ({"type": "embeds"}, "prompt type"),
        ({"type": "token"}, "prompt_token_ids"),
        ({"type": "token", "prompt_token_ids": [1], "arrival_time": "now"}, "arrival_time"),
        ([{"content": "no role"}], "messages[0]"),
        ([*CHAT, "x"], "messages[1]"),
        ([{"role": "user", "content": 5}], "messages[0] content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "messages[0] content"),
    ],
)
def test_what_is_no_prompt(renderer: Renderer, prompt: Any, named: str) -> None:
    with pytest.raises(VLLMValidationError) as caught:
        renderer.render(prompt)
    assert caught.value.parameter == named
    assert str(caught.value).startswith(f"{named} must be")


def test_multimodal_prompts_are_refused_by_name(renderer: Renderer) -> None:
    with pytest.raises(VLLMValidationError, match=r"multimodal data, .* are not served; got 'multi_modal_data'"):
        renderer.render({"prompt": "a", "multi_modal_data": {"image": 1}})


def test_text_parts_of_a_message_are_joined(renderer: Renderer) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    text = renderer.render([{"role": "user", "content": parts}])["prompt"]
    assert text == "<|im_start|>user\none\ntwo<|im_end|>\n<|im_start|>assistant\n"


def test_a_message_keeps_its_other_fields(renderer: Renderer) -> None:
    template = "{{ messages[0].tool_calls[0].id }}{{ messages[0].content is defined }}"
    message = {"role": "assistant", "tool_calls": [{"id": "call-1"}]}
    assert renderer.render_chat([message], chat_template=template)["prompt"] == "call-1False"


def test_chat_options(renderer: Renderer) -> None:
    assert renderer.render_chat(CHAT, add_generation_prompt=False)["prompt"] == "<|im_start|>user\nhi<|im_end|>\n"
    template = "{{ tools[0].name }} {{ mood }}"
    assert renderer.render_chat(CHAT, chat_template=template, tools=[{"name": "look"}], mood="calm")["prompt"] == "look calm"


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({"truncate_prompt_tokens": 3}, [108, 108, 111]),
        ({"truncate_prompt_tokens": 30}, ids("hello")),
        ({"add_special_tokens": False}, ids("hello")),
        ({"truncate_prompt_tokens": None}, ids("hello")),
    ],
)
def test_tokenization_options(renderer: Renderer, kwargs: Mapping[str, Any], expected: list[int]) -> None:
    assert renderer.render("hello", kwargs)["prompt_token_ids"] == expected
    assert renderer.render(ids("hello"), kwargs)["prompt_token_ids"] == expected


@pytest.mark.parametrize(
    ("prompt", "kwargs", "named"),
    [
        ("hi", {"padding": True}, "tokenization_kwargs"),
        ("hi", {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("hi", {"add_special_tokens": 1}, "add_special_tokens"),
        (HI, {"add_special_tokens": False}, "tokenization_kwargs"),
    ],
)
def test_options_that_do_not_exist(renderer: Renderer, prompt: Any, kwargs: Mapping[str, Any], named: str) -> None:
    with pytest.raises(VLLMValidationError) as caught:
        renderer.render(prompt, kwargs)
    assert caught.value.parameter == named


def test_without_a_tokenizer_only_ids_are_prompts(tiny_model_path: Path) -> None:
    renderer = Renderer.from_config(toy_config(tiny_model_path, skip_tokenizer_init=True))
    assert renderer.render([104, 105]) == HI
    for prompt in ("hi", CHAT):
        with pytest.raises(VLLMValidationError, match="skip_tokenizer_init"):
            renderer.render(prompt)


async def test_text_is_tokenized_in_a_thread_and_ids_are_not(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    render = renderer.render

    def noting(*args: Any) -> TokensInput:
        threads.append(threading.current_thread().name.rsplit("_", 1)[0])
        return render(*args)

    monkeypatch.setattr(renderer, "render", noting)
    for prompt in ("hi", {"prompt": "hi"}, CHAT, [1, 2], {"prompt_token_ids": [1]}, HI):
        await renderer.render_async(prompt)
    renderer.shutdown()
    main = threading.current_thread().name
    assert threads == ["tokenizer", "tokenizer", "tokenizer", main, main, main]


async def test_a_long_prompt_does_not_hold_up_the_loop(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    encode = Tokenizer.encode

    def slow(tokenizer: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
        if text == "long":
            assert released.wait(20)
        return encode(tokenizer, text, add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode", slow)
    long = asyncio.create_task(renderer.render_async("long"))
    short = await renderer.render_async("short")  # while the other is being tokenized
    assert short["prompt_token_ids"] == ids("short")
    assert not long.done()
    released.set()
    assert (await long)["prompt_token_ids"] == ids("long")
    renderer.shutdown()
