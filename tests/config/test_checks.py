from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from vllm_lite.config.checks import (
    check_bool,
    check_choice,
    check_int,
    check_mapping,
    check_number,
    check_path,
    check_text,
    check_token_ids,
    refuse,
)
from vllm_lite.exceptions import VLLMValidationError


def test_refuse_names_field_value_and_what_is_accepted() -> None:
    error = refuse("n", 0, "an integer >= 1")
    assert str(error) == "n must be an integer >= 1; got 0"
    assert (error.parameter, error.value) == ("n", 0)


def test_refuse_shortens_a_long_value() -> None:
    text = str(refuse("stop", "x" * 1000, "text"))
    assert text == "stop must be text; got '" + "x" * 76 + "..."


@pytest.mark.parametrize("value", [1, 5, 10])
def test_check_int_accepts_the_range(value: int) -> None:
    check_int("field", value, 1, 10)


@pytest.mark.parametrize("value", [0, 11, 1.0, True, "1", None, math.nan])
def test_check_int_refuses_the_rest(value: Any) -> None:
    with pytest.raises(VLLMValidationError, match=r"^field must be an integer >= 1 and <= 10; got ") as caught:
        check_int("field", value, 1, 10)
    assert caught.value.parameter == "field"


def test_check_int_without_bounds() -> None:
    check_int("field", -(2**63))
    with pytest.raises(VLLMValidationError, match=r"^field must be an integer; got 1.5$"):
        check_int("field", 1.5)


@pytest.mark.parametrize("ids", [[], [0], [319, 0], {319: 1.0}, {5}])
def test_check_token_ids_accepts_the_vocabulary(ids: Any) -> None:
    check_token_ids("field", ids, 320)


@pytest.mark.parametrize(("ids", "bad"), [([0, 320], 320), ([-1, 3], -1), ({2**62: 1.0}, 2**62)])
def test_check_token_ids_refuses_the_rest(ids: Any, bad: int) -> None:
    with pytest.raises(VLLMValidationError, match=f"^field must be made of token ids in the vocabulary, 0 to 319; got {bad}$"):
        check_token_ids("field", ids, 320)


@pytest.mark.parametrize("value", [2**63, 2**70, -(2**63) - 1])
def test_numbers_fit_in_64_bits(value: int) -> None:
    with pytest.raises(VLLMValidationError, match=r"^field must be an integer that fits in 64 bits; got "):
        check_int("field", value)
    with pytest.raises(VLLMValidationError, match=r"^field must be a finite number that fits in 64 bits; got "):
        check_number("field", value)


def test_a_number_without_end_is_refused_by_name() -> None:
    with pytest.raises(VLLMValidationError, match=r"^field must be a finite number >= 0 that fits in 64 bits; got 10000"):
        check_number("field", 10**400, 0)
    with pytest.raises(VLLMValidationError, match=r"^field must be an integer that fits in 64 bits; got a value of type int"):
        check_int("field", 10**5000)


@pytest.mark.parametrize("value", ["", "x", "é"])
def test_check_text_accepts(value: str) -> None:
    check_text("field", value)


@pytest.mark.parametrize(
    ("value", "accepted"), [(5, "a string"), (b"x", "a string"), ("\ud800", r"a string without lone surrogates \(.*\)")]
)
def test_check_text_refuses_the_rest(value: Any, accepted: str) -> None:
    with pytest.raises(VLLMValidationError, match=f"^field must be {accepted}; got "):
        check_text("field", value)


@pytest.mark.parametrize("value", [0, 0.0, 2, 1.5])
def test_check_number_accepts_ints_and_floats(value: float) -> None:
    check_number("field", value, 0, 2)


@pytest.mark.parametrize("value", [-0.1, 2.1, math.nan, math.inf, -math.inf])
def test_check_number_refuses_the_rest(value: Any) -> None:
    with pytest.raises(VLLMValidationError, match=r"^field must be a finite number >= 0 and <= 2; got "):
        check_number("field", value, 0, 2)


@pytest.mark.parametrize("value", [True, "1", None, np.float32(1.0), np.int64(1)])
def test_check_number_refuses_other_types(value: Any) -> None:
    with pytest.raises(VLLMValidationError, match=r"^field must be a finite number >= 0 \(an int or a float\); got "):
        check_number("field", value, 0)


@pytest.mark.parametrize("value", [5, None, "", "\ud800", "a\0b"])
def test_check_path_refuses_what_names_no_file(value: Any) -> None:
    check_path("field", "/a/b")
    with pytest.raises(VLLMValidationError, match=r"^field must be a path "):
        check_path("field", value)


@pytest.mark.parametrize("value", [5, [1], "ab", {1: 2}, {None: 1}, {"a": 1, (1, 2): 3}])
def test_check_mapping_refuses_all_but_string_keys(value: Any) -> None:
    check_mapping("field", {"a": 1})
    with pytest.raises(VLLMValidationError, match=r"^field must be a mapping whose keys are strings; got "):
        check_mapping("field", value)


def test_check_number_above_low() -> None:
    check_number("field", 0.001, 0, above_low=True)
    with pytest.raises(VLLMValidationError, match=r"^field must be a finite number above 0; got 0$"):
        check_number("field", 0, 0, above_low=True)


@pytest.mark.parametrize("value", [0, 1, "True", None])
def test_check_bool_refuses_all_but_true_and_false(value: Any) -> None:
    check_bool("field", True)
    check_bool("field", False)
    with pytest.raises(VLLMValidationError, match=r"^field must be True or False; got "):
        check_bool("field", value)


def test_check_choice_lists_the_choices() -> None:
    check_choice("device", "cpu", ("cpu", "cuda"))
    with pytest.raises(VLLMValidationError, match=r"^device must be one of 'cpu', 'cuda'; got 'tpu'$"):
        check_choice("device", "tpu", ("cpu", "cuda"))
