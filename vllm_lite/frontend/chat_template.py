"""From chat messages to the one text the model was trained on, by the model's own Jinja template.

Process: front end. Knows: jinja2 and what templates written for transformers expect to find. Does not know: token ids, or
transformers, whose import costs a second. Templates come with models and are not trusted: they run in jinja2's sandbox, on
values they cannot change.
Mirrors: nothing in vLLM, which calls transformers' apply_chat_template.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vllm_lite.exceptions import VLLMValidationError

MOST_COMPILED = 16  # templates that are kept compiled: callers may bring their own


class ChatTemplates:
    """A model's chat templates by name ("default", perhaps "tool_use"), compiled when first used.

    `special_tokens` (bos_token, eos_token, ...) are variables of every template.
    """

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._templates = dict(templates)
        self._special_tokens = dict(special_tokens)
        self._compile = lru_cache(MOST_COMPILED)(_environment().from_string)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The text of `messages`, ending where the model's answer begins.

        `chat_template` replaces the model's own; `variables` are handed to the template as they are. Raises
        VLLMValidationError where there is no template, or where it refuses these messages.
        """
        source = chat_template if chat_template is not None else self._choose(with_tools=tools is not None)
        try:
            return self._compile(source).render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **{**self._special_tokens, **variables},
            )
        except Exception as error:  # a template can raise whatever Python can
            raise VLLMValidationError(
                f"messages were refused by the model's chat template: {error}", parameter="messages", value=None
            ) from error

    def _choose(self, *, with_tools: bool) -> str:
        if with_tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if "default" not in self._templates:
            raise VLLMValidationError(
                "messages need a chat template and this model has none; send a text prompt", parameter="messages", value=None
            )
        return self._templates["default"]


def _environment() -> ImmutableSandboxedEnvironment:
    """What templates for transformers rely on: block trimming, loop controls, and these names."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.datetime.now().strftime(pattern)
    return environment


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; here its body is all that counts."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Unlike jinja2's own, not escaped for HTML; templates may give the first two by place."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
