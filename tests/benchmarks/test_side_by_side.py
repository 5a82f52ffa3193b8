"""What counts as equal, what is explained and what is not, when two engines have answered the same cases."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest

from benchmarks import side_by_side
from vllm_lite.config.model_files import resolve_model

Answer = dict[str, Any]


def answer(token_ids: list[int], texts: list[str], **end: Any) -> Answer:
    """A stream of one token in each output; every position has the sampled token and token 9, 0.01 less likely."""
    chunks = [
        [{"index": 0, "text": text, "token_ids": [token], "finish_reason": None, "stop_reason": None}]
        for token, text in zip(token_ids, texts, strict=True)
    ]
    last = {"index": 0, "text": "".join(texts), "token_ids": token_ids, "finish_reason": "length", "stop_reason": None, **end}
    return {
        "prompt": "p",
        "prompt_token_ids": [1, 2],
        "num_cached_tokens": 0,
        "prompt_logprobs": None,
        "chunks": chunks,
        "finished": [False] * (len(chunks) - 1) + [True],
        "ends": [last],
        "logprobs": [{str(token): [-1.0, 1, "t"], "9": [-1.01, 2, "9"]} for token in token_ids],
    }


def compare(own: Answer, other: Answer, dtype: str = "float32", **case: Any) -> side_by_side.Row:
    ours, theirs = ({"name": "case", "how": "tokens", "logprobs": False, "answers": [each]} | case for each in (own, other))
    return side_by_side.compare(ours, theirs, dtype)


GOOD = answer([3, 4, 5], ["a", "b", "c"])


def test_equal_answers() -> None:
    assert str(compare(GOOD, copy.deepcopy(GOOD), logprobs=True)) == ("| case | 1/1 | 1/1 | 1/1 | log probabilities within 0 |")


def test_a_near_tie_explains_where_answers_part() -> None:
    other = answer([3, 9, 5], ["a", "x", "c"])
    other["logprobs"][1] = {"9": [-1.0, 1, "9"], "4": [-1.02, 2, "t"]}
    row = compare(GOOD, other, "bfloat16")
    assert str(row) == "| case | 0/1 |  |  | near ties at tokens 1, 0.02 at most |"
    assert row.unexplained == []
    assert compare(GOOD, other, "float32").unexplained == ["prompt 0 parts at token 1, where the two are 0.02 apart"]
    assert str(compare(GOOD, other, "bfloat16", how="prefix").tokens) == "0/1"


def test_two_tokens_that_are_no_tie_are_not_explained() -> None:
    other = answer([3, 7, 5], ["a", "x", "c"])
    other["logprobs"][1] = {"7": [-1.0, 1, "t"], "9": [-1.8, 2, "9"]}
    assert compare(GOOD, other, "bfloat16").unexplained == ["prompt 0 parts at token 1, where the two are 0.8 apart"]
    other["logprobs"][1] = {"7": [-1.0, 1, "t"]}
    assert compare(GOOD, other, "bfloat16").unexplained == ["prompt 0 parts at token 1, where the two are inf apart"]


def test_the_distance_of_log_probabilities() -> None:
    prompts = [[None, {"2": [logprob, 1, "t"]}] for logprob in (-1.0, -1.5)]
    one, two = ([{"answers": [GOOD | {"prompt_logprobs": prompt}, {"error": ["ValueError"]}]}] for prompt in prompts)
    assert side_by_side.distance(one, two) == 0.5


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (answer([3, 4], ["a", "b"]), "prompt 0: 3 tokens against 2"),
        (answer([3, 4, 5], ["a", "b", "d"]), "text 'abc' against 'abd'"),
        (answer([3, 4, 5], ["a", "b", "c"], finish_reason="stop"), "('length', None) against ('stop', None)"),
        (GOOD | {"num_cached_tokens": 16}, "num_cached_tokens 0 against 16"),
        (GOOD | {"prompt_token_ids": [1]}, "prompt_token_ids [1, 2] against [1]"),
        (GOOD | {"logprobs": [{"3": [-1.0, 1, "t"]}] * 3}, "token 0: 2 candidates against 1"),
        (
            GOOD | {"logprobs": [{"3": [-1.1, 1, "t"], "9": [-1.2, 2, "9"]}, *GOOD["logprobs"][1:]]},
            "log probabilities 0.19 apart",
        ),
        (
            GOOD | {"logprobs": [{"3": [-1.0, 1, "u"], "9": [-1.01, 2, "9"]}, *GOOD["logprobs"][1:]]},
            "token 3 is 't' against 'u'",
        ),
        ({"error": ["ValueError", "Exception"], "message": "no"}, "an answer against ValueError"),
    ],
)
def test_what_is_nobodys_right_to_differ_in(other: Answer, words: str) -> None:
    found = compare(GOOD, other, logprobs=True).unexplained
    assert words in found[0]


def test_text_may_come_earlier_than_theirs_but_not_later() -> None:
    held_back = answer([3, 4, 5], ["", "a", "bc"])
    row = compare(GOOD, held_back, how="chunks")
    assert (row.notes, row.unexplained) == (["the same tokens in each output, text earlier"], [])
    (found,) = compare(held_back, GOOD, how="chunks").unexplained
    assert found == "prompt 0: the stream's outputs: 1'' 1'a' 1'bc' against 1'a' 1'b' 1'c'"


def test_errors_are_compared_by_their_kind() -> None:
    refused = {"error": ["VLLMValidationError", "ValueError"], "message": "no"}
    assert str(compare(refused, refused, how="errors")) == "| case |  |  | 1/1 | VLLMValidationError |"
    row = compare(refused, {"error": ["TypeError"], "message": "no"}, how="errors")
    assert row.unexplained == ["VLLMValidationError against TypeError"]


def test_sampled_answers_are_compared_by_length_and_reason() -> None:
    assert compare(GOOD, answer([6, 7, 8], ["x", "y", "z"]), how="lengths").unexplained == []
    assert compare(GOOD, answer([6, 7], ["x", "y"]), how="lengths").unexplained == ["3 tokens against 2"]


def test_aborted_answers_are_compared_as_far_as_both_got() -> None:
    row = compare(GOOD, answer([3, 4], ["a", "b"]), how="prefix")
    assert (str(row.tokens), row.unexplained) == ("1/1", [])


def test_an_engine_agrees_with_itself() -> None:
    found = side_by_side.run(sys.executable, "vllm_lite", resolve_model("tiny"), "float32", "special tokens kept")
    rows = [side_by_side.compare(case, case, "float32") for case in found]
    assert [str(row) for row in rows] == [
        "| special tokens kept | 2/2 | 2/2 | 2/2 |  |",
        "| special tokens kept, ignore_eos | 2/2 | 2/2 | 2/2 | 32 tokens of prompt 0 cached; 32 tokens of prompt 1 cached |",
    ]
