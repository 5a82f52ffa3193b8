"""Templates see what transformers shows them, cannot reach out of the sandbox, and refuse in the caller's terms."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.frontend.chat_template import ChatTemplates

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}


def render(template: str, messages: Any = HI, **variables: Any) -> str:
    return ChatTemplates({"default": template}, {"bos_token": "<s>", "eos_token": "</s>"}).render(messages, **variables)


def test_messages_and_special_tokens_are_variables() -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m['content'] }}{{ eos_token }}{% endfor %}"
    assert render(template) == "<s>user: hi</s>"


def test_blocks_leave_no_lines_behind() -> None:
    assert render("{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n") == "hi\n"


@pytest.mark.parametrize(("wanted", "text"), [(True, "hi>"), (False, "hi")])
def test_add_generation_prompt(wanted: bool, text: str) -> None:
    template = "{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}"
    assert render(template, add_generation_prompt=wanted) == text


def test_other_variables_reach_the_template() -> None:
    assert render("{{ enable_thinking }}", enable_thinking=False) == "False"


def test_loop_controls_and_generation_blocks() -> None:
    skip = "{% if m.content == 'no' %}{% continue %}{% endif %}"
    template = "{% for m in messages %}" + skip + "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert render(template, [{"role": "user", "content": "no"}, {"role": "assistant", "content": "yes"}]) == "yes"


def test_tojson_does_not_escape_for_html_nor_for_ascii() -> None:
    assert render("{{ messages[0].content | tojson }}", [{"role": "user", "content": "<é>"}]) == '"<é>"'


def test_tojson_takes_its_options_by_place_and_by_name() -> None:
    messages = [{"role": "user", "content": "é"}]
    assert render("{{ messages[0].content | tojson(true) }}", messages) == r'"\u00e9"'
    assert render("{{ messages[0] | tojson(true, 1) }}", messages) == '{\n "role": "user",\n "content": "\\u00e9"\n}'
    named = "{{ messages[0] | tojson(separators=(',', ':'), sort_keys=true) }}"
    assert render(named, messages) == '{"content":"é","role":"user"}'


def test_strftime_now() -> None:
    assert render("{{ strftime_now('%Y') }}") == str(datetime.datetime.now().year)


def test_a_template_of_its_own_for_tools() -> None:
    templates = ChatTemplates({"default": "plain", "tool_use": "{{ tools[0].function.name }}"}, {})
    assert templates.render(HI) == "plain"
    assert templates.render(HI, tools=[TOOL]) == "look"


def test_the_callers_template_wins() -> None:
    assert render("model's", chat_template="caller's") == "caller's"


def test_a_model_without_a_template() -> None:
    with pytest.raises(VLLMValidationError, match="has none; send a text prompt") as caught:
        ChatTemplates({}, {}).render(HI)
    assert caught.value.parameter == "messages"


def test_a_template_that_refuses_says_why() -> None:
    with pytest.raises(VLLMValidationError, match="refused by the model's chat template: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.append(1) }}",  # values are the caller's
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",  # and Python is out of reach
        "{{ messages[0].content.nothing.there }}",
        "{% if %}",
    ],
)
def test_a_broken_or_malicious_template_is_the_requests_error(template: str) -> None:
    with pytest.raises(VLLMValidationError, match="refused by the model's chat template"):
        render(template)
    assert HI == [{"role": "user", "content": "hi"}]
