from __future__ import annotations

import math
from typing import Any

import pytest

from vllm_lite.config.checks import check_bool, check_choice, check_int, check_number, refuse
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
    check_int("field", -(10**30))
    with pytest.raises(VLLMValidationError, match=r"^field must be an integer; got 1.5$"):
        check_int("field", 1.5)


@pytest.mark.parametrize("value", [0, 0.0, 2, 1.5])
def test_check_number_accepts_ints_and_floats(value: float) -> None:
    check_number("field", value, 0, 2)


@pytest.mark.parametrize("value", [-0.1, 2.1, math.nan, math.inf, -math.inf, True, "1", None])
def test_check_number_refuses_the_rest(value: Any) -> None:
    with pytest.raises(VLLMValidationError, match=r"^field must be a finite number >= 0 and <= 2; got "):
        check_number("field", value, 0, 2)


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
