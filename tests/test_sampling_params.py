from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from vllm_lite import RequestOutputKind, SamplingParams
from vllm_lite.exceptions import VLLMValidationError

BAD = [
    ("n", 0),
    ("n", -1),
    ("n", 1.0),
    ("n", True),
    ("n", 10**9),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("repetition_penalty", 0),
    ("repetition_penalty", math.inf),
    ("temperature", -1),
    ("temperature", math.nan),
    ("temperature", "hot"),
    ("temperature", None),
    ("temperature", 10**400),
    ("temperature", 2**70),
    ("top_p", 0),
    ("top_p", 2),
    ("top_p", math.nan),
    ("top_k", -2),
    ("top_k", 1.5),
    ("top_k", 2**70),
    ("min_p", 1.1),
    ("seed", 1.5),
    ("seed", 2**63),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", [1]),
    ("stop", "\ud800"),
    ("stop", {"a"}),
    ("stop_token_ids", [1.0]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", 5),
    ("allowed_token_ids", ["a"]),
    ("ignore_eos", 1),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 16.0),
    ("max_tokens", 2**70),
    ("min_tokens", -1),
    ("min_tokens", 17),
    ("logprobs", -2),
    ("logprobs", True),
    ("prompt_logprobs", 0.5),
    ("detokenize", "yes"),
    ("skip_special_tokens", None),
    ("include_stop_str_in_output", 0),
    ("output_kind", 1),
    ("output_kind", "DELTA"),
    ("logit_bias", [1]),
    ("bad_words", [""]),
    ("bad_words", "word"),
    ("bad_words", ["\ud800"]),
    ("stream_interval", 0),
    ("extra_args", []),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(VLLMValidationError, match=rf"^{field} must be ") as caught:
        SamplingParams(**{field: value})
    assert caught.value.parameter == field


@pytest.mark.parametrize(
    ("logit_bias", "field"),
    [
        ({-1: 0.0}, "logit_bias key"),
        ({"a": 0.0}, "logit_bias key"),
        ({5: 101}, "logit_bias[5]"),
        ({5: math.nan}, "logit_bias[5]"),
    ],
)
def test_a_bad_bias_is_named_with_its_token(logit_bias: Any, field: str) -> None:
    with pytest.raises(VLLMValidationError) as caught:
        SamplingParams(logit_bias=logit_bias)
    assert caught.value.parameter == field


def test_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.max_tokens) == (1, 1.0, 1.0, 0, 16)
    assert (params.stop_strings, params.output_kind, params.detokenize) == ([], RequestOutputKind.CUMULATIVE, True)


def test_stop_may_be_one_string() -> None:
    assert SamplingParams(stop="END").stop_strings == ["END"]
    assert SamplingParams(stop=["a", "b"]).stop_strings == ["a", "b"]


@pytest.mark.parametrize(("given", "kept"), [(-1, 0), (0, 0), (7, 7)])
def test_top_k_of_all_is_zero(given: int, kept: int) -> None:
    assert SamplingParams(top_k=given).top_k == kept


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (0.0, True), (9e-6, True), (1e-5, False), (1.0, False)])
def test_greedy(temperature: float, greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).greedy is greedy


def test_combinations_that_cannot_be() -> None:
    with pytest.raises(VLLMValidationError, match=r"^min_tokens must be <= max_tokens, which is 4; got 5$"):
        SamplingParams(min_tokens=5, max_tokens=4)
    with pytest.raises(VLLMValidationError, match=r"^stop must be empty where detokenize is False"):
        SamplingParams(stop="x", detokenize=False)
    with pytest.raises(VLLMValidationError, match=r"^n must be 1 where temperature is 0"):
        SamplingParams(n=2, temperature=0)
    SamplingParams(min_tokens=5, max_tokens=None)


def test_decoding_elsewhere_checks_again_and_changes_nothing() -> None:
    params = SamplingParams(
        temperature=0.5,
        top_k=-1,
        stop="END",
        stop_token_ids=[3],
        seed=7,
        max_tokens=None,
        logit_bias={1: 2.0},
        output_kind=RequestOutputKind.DELTA,
        all_stop_token_ids={3, 9},
        extra_args={"key": [1, "a"]},
    )
    encoded = msgspec.msgpack.encode(params)
    decoded = msgspec.msgpack.decode(encoded, type=SamplingParams)
    assert decoded == params
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(decoded), type=SamplingParams) == params
    with pytest.raises(msgspec.ValidationError, match=r"^top_p must be "):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"top_p": 2}), type=SamplingParams)


def test_a_clone_has_containers_of_its_own() -> None:
    params = SamplingParams(
        stop=["a"], stop_token_ids=[1], all_stop_token_ids={1}, logit_bias={1: 1.0}, bad_words=["w"], extra_args={"k": 1}
    )
    clone = params.clone()
    assert clone == params
    for field in ("stop", "stop_token_ids", "all_stop_token_ids", "logit_bias", "bad_words", "extra_args"):
        assert getattr(clone, field) is not getattr(params, field), field
