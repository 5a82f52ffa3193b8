"""From whatever a caller may write as a prompt to one kind of value: token ids, perhaps with the text they came from.

Process: front end. Knows: prompt kinds, chat messages, the tokenizer, a small thread pool. Does not know: sampling parameters
or the model's limits (the InputProcessor checks those).
A prompt is a string, a list of token ids, a list of chat messages, or a dictionary with `prompt` or `prompt_token_ids`.
Mirrors: vllm/renderers/base.py, vllm/inputs/
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NotRequired, TypedDict, TypeGuard

from vllm_lite.config import ModelConfig, VllmConfig
from vllm_lite.config.checks import check_bool, check_int, check_mapping, check_number, check_text, refuse
from vllm_lite.frontend.tokenizer import Tokenizer

TOKENIZER_THREADS = 2  # one long prompt must not keep a short one waiting
PROMPT_KINDS = "a string, a list of token ids, a list of chat messages, or a dictionary with 'prompt' or 'prompt_token_ids'"
_PROMPT_KEYS = {"prompt", "prompt_token_ids", "cache_salt"}
_RENDERED_KEYS = {"type", "arrival_time", *_PROMPT_KEYS}


class TokensInput(TypedDict):
    """A rendered prompt. `prompt` is the text it came from; `cache_salt` keeps its KV blocks from being shared."""

    type: Literal["token"]
    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]
    arrival_time: NotRequired[float]


ChatMessage = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[ChatMessage] | Mapping[str, Any] | TokensInput


class Renderer:
    """Renders prompts. `tokenizer` is None with `skip_tokenizer_init`: then only token ids are accepted."""

    def __init__(self, model_config: ModelConfig, tokenizer: Tokenizer | None) -> None:
        self.model_config = model_config
        self.tokenizer = tokenizer
        self._pool = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokenizer")

    @classmethod
    def from_config(cls, vllm_config: VllmConfig) -> Renderer:
        """The renderer of `vllm_config`'s model, its tokenizer loaded."""
        model_config = vllm_config.model_config
        return cls(model_config, None if model_config.skip_tokenizer_init else Tokenizer.from_config(model_config))

    def get_tokenizer(self) -> Tokenizer:
        """The tokenizer; VLLMValidationError where the engine runs without one."""
        if self.tokenizer is None:
            raise refuse("prompt", "text", "token ids, since the engine runs with skip_tokenizer_init")
        return self.tokenizer

    def render(self, prompt: Prompt, tokenization_kwargs: Mapping[str, Any] | None = None) -> TokensInput:
        """The rendered `prompt`. Tokenizes where it must, which blocks; VLLMValidationError for what is no prompt."""
        if isinstance(prompt, Mapping) and "type" in prompt:
            if tokenization_kwargs:
                raise refuse("tokenization_kwargs", tokenization_kwargs, "empty for a prompt that is rendered already")
            if prompt["type"] != "token":
                accepted = "'token': multimodal, encoder-decoder and embeds prompts are not served"
                raise refuse("prompt type", prompt["type"], accepted)
        add_special_tokens, most = _tokenization(tokenization_kwargs)
        if isinstance(prompt, str):
            rendered = self._from_text(prompt, add_special_tokens)
        elif isinstance(prompt, Mapping):
            rendered = self._from_dict(prompt, add_special_tokens)
        elif _is_chat(prompt):
            rendered = self.render_chat(prompt)
        else:
            rendered = {"type": "token", "prompt_token_ids": _token_ids("prompt", prompt, PROMPT_KINDS)}
        if most is not None:
            rendered["prompt_token_ids"] = rendered["prompt_token_ids"][-most:]
        return rendered

    async def render_async(self, prompt: Prompt, tokenization_kwargs: Mapping[str, Any] | None = None) -> TokensInput:
        """As `render`, with the tokenizer's work in a thread, so that other requests' letters go on being sorted."""
        if not _needs_tokenizer(prompt):
            return self.render(prompt, tokenization_kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.render, prompt, tokenization_kwargs)

    def render_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> TokensInput:
        """Messages (dictionaries with `role` and `content`) in the model's own chat format.

        `chat_template` replaces the model's template; `variables` go to it as they are.
        """
        if not isinstance(messages, list | tuple):
            raise refuse("messages", messages, "a list of chat messages")
        if chat_template is not None:
            check_text("chat_template", chat_template)
        check_bool("add_generation_prompt", add_generation_prompt)
        if tools is not None and not (isinstance(tools, list | tuple) and all(isinstance(tool, Mapping) for tool in tools)):
            raise refuse("tools", tools, "None or a list of dictionaries")
        tokenizer = self.get_tokenizer()
        text = tokenizer.chat_templates.render(
            [_plain_message(i, message) for i, message in enumerate(messages)],
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            **variables,
        )
        return self._from_text(text, add_special_tokens=False)  # the template writes bos itself

    def shutdown(self) -> None:
        """End the threads; prompts that wait for one are given up."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _from_text(self, text: str, add_special_tokens: bool) -> TokensInput:
        ids = self.get_tokenizer().encode(check_text("prompt", text), add_special_tokens)
        return {"type": "token", "prompt_token_ids": ids, "prompt": text}

    def _from_dict(self, prompt: Mapping[str, Any], add_special_tokens: bool) -> TokensInput:
        known = _RENDERED_KEYS if "type" in prompt else _PROMPT_KEYS
        given = {key: value for key, value in prompt.items() if value is not None}
        for key in given.keys() - known:
            served = "; multimodal data, embeddings and encoder prompts are not served"
            raise refuse("prompt", key, f"made of {', '.join(sorted(known))}{served}")
        if "type" in given or "prompt_token_ids" in given:
            ids = _token_ids("prompt_token_ids", given.get("prompt_token_ids"))
            rendered: TokensInput = {"type": "token", "prompt_token_ids": ids}
            if "prompt" in given:
                rendered["prompt"] = check_text("prompt", given["prompt"])
        elif "prompt" in given:
            rendered = self._from_text(given["prompt"], add_special_tokens)
        else:
            raise refuse("prompt", prompt, PROMPT_KINDS)
        if "cache_salt" in given:
            rendered["cache_salt"] = check_text("cache_salt", given["cache_salt"])
        if "arrival_time" in given:
            check_number("arrival_time", given["arrival_time"], 0)
            rendered["arrival_time"] = given["arrival_time"]
        return rendered


def _tokenization(tokenization_kwargs: Mapping[str, Any] | None) -> tuple[bool, int | None]:
    """Whether to frame a text with bos and eos as the model wants, and how many of its last tokens to keep; None: all."""
    if tokenization_kwargs is None:
        return True, None
    check_mapping("tokenization_kwargs", tokenization_kwargs)
    given = {"add_special_tokens": True, **{name: value for name, value in tokenization_kwargs.items() if value is not None}}
    for name in given.keys() - {"add_special_tokens", "truncate_prompt_tokens"}:
        raise refuse("tokenization_kwargs", name, "add_special_tokens or truncate_prompt_tokens")
    check_bool("add_special_tokens", given["add_special_tokens"])
    if "truncate_prompt_tokens" in given:
        check_int("truncate_prompt_tokens", given["truncate_prompt_tokens"], 1)
    return given["add_special_tokens"], given.get("truncate_prompt_tokens")


def _token_ids(field: str, ids: object, accepted: str = "a list of token ids") -> list[int]:
    """A list of ids that are true integers; the vocabulary is the InputProcessor's to check."""
    if not isinstance(ids, list | tuple):
        raise refuse(field, ids, accepted)
    if not set(map(type, ids)) <= {int}:
        wrong = next(i for i in ids if type(i) is not int)
        raise refuse(field, wrong, "a list of token ids, which are integers")
    return list(ids)


def _is_chat(prompt: object) -> TypeGuard[Sequence[ChatMessage]]:
    return isinstance(prompt, list | tuple) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _needs_tokenizer(prompt: object) -> bool:
    if isinstance(prompt, Mapping):
        return prompt.get("prompt_token_ids") is None and isinstance(prompt.get("prompt"), str)
    return isinstance(prompt, str) or _is_chat(prompt)


def _plain_message(index: int, message: object) -> dict[str, Any]:
    """The message with its content as one string: text parts are joined by line ends, other parts refused."""
    field = f"messages[{index}]"
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise refuse(field, message, "a dictionary with 'role' and 'content'")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return dict(message)
    if not isinstance(content, list | tuple):
        raise refuse(f"{field} content", content, "a string or a list of text parts")
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise refuse(f"{field} content", part, "text parts; images, audio and video are not served")
    return {**message, "content": "\n".join(part["text"] for part in content)}
