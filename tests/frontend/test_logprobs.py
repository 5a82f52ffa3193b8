"""Columns become vLLM's dictionaries: the sampled token first, ranks from 1, duplicates once, split characters made whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontend.helpers import ids, piece_tokenizer, request, row, word_tokenizer
from vllm_lite.frontend.logprobs import LogprobsProcessor
from vllm_lite.frontend.tokenizer import Tokenizer
from vllm_lite.outputs import Logprob
from vllm_lite.wire.step import LogprobsLists


def lists(token_ids: list[list[int]], logprobs: list[list[float]], ranks: list[int]) -> LogprobsLists:
    return LogprobsLists(np.array(token_ids, np.int32), np.array(logprobs, np.float32), np.array(ranks, np.int32))


def processor(tokenizer: Tokenizer | None, prompt: str = "abc", **params: Any) -> LogprobsProcessor:
    return LogprobsProcessor(tokenizer, request(prompt_token_ids=ids(prompt), **params))


def feed(target: LogprobsProcessor, token_ids: list[int], keep: int | None = None) -> None:
    """Sampled tokens, one candidate each, all with log probability -1."""
    columns = lists([[i] for i in token_ids], [[-1.0]] * len(token_ids), [1] * len(token_ids))
    target.update_from_output(row("r", token_ids, new_logprobs=columns), len(token_ids) if keep is None else keep)


def test_rows(tiny_tokenizer: Tokenizer) -> None:
    target = processor(tiny_tokenizer, logprobs=2)
    columns = lists([[97, 98, 99], [98, 98, 97]], [[-4.0, -0.5, -1.5], [-0.25, -0.25, -2.0]], [9, 1])
    target.update_from_output(row("r", [97, 98], new_logprobs=columns), 2)
    assert target.take_logprobs(delta=False) == [
        {97: Logprob(-4.0, 9, "a"), 98: Logprob(-0.5, 1, "b"), 99: Logprob(-1.5, 2, "c")},
        {98: Logprob(-0.25, 1, "b"), 97: Logprob(-2.0, 2, "a")},
    ]
    assert target.cumulative_logprob == -4.25
    assert [list(logprobs) for logprobs in target.take_logprobs(delta=False) or ()] == [[97, 98, 99], [98, 97]]


def test_deltas_are_handed_out_once_and_an_empty_one_is_empty(tiny_tokenizer: Tokenizer) -> None:
    target = processor(tiny_tokenizer, logprobs=0)
    feed(target, ids("ab"))
    assert [list(logprobs) for logprobs in target.take_logprobs(delta=True) or ()] == [[97], [98]]
    feed(target, [])
    assert target.take_logprobs(delta=True) == []  # S17: not all the earlier ones again


def test_snapshots_do_not_grow(tiny_tokenizer: Tokenizer) -> None:
    target = processor(tiny_tokenizer, logprobs=0)
    feed(target, ids("a"))
    first = target.take_logprobs(delta=False)
    feed(target, ids("b"))
    assert first is not None
    assert len(first) == 1


def test_case_9_what_lies_behind_a_stop_string_does_not_count(tiny_tokenizer: Tokenizer) -> None:
    target = processor(tiny_tokenizer, logprobs=0)
    feed(target, ids("abcdef"), keep=3)
    assert [next(iter(logprobs)) for logprobs in target.take_logprobs(delta=False) or ()] == ids("abc")
    assert target.cumulative_logprob == -3.0


@pytest.mark.parametrize(
    ("text", "decoded"), [("é", ["", "é"]), ("a日b", ["a", "", "", "日", "b"]), ("😀", ["", "", "", "😀"])]
)
def test_a_split_character_belongs_to_the_token_that_completes_it(
    tiny_tokenizer: Tokenizer, text: str, decoded: list[str]
) -> None:
    target = processor(tiny_tokenizer, logprobs=0)
    for token_id in ids(text):
        feed(target, [token_id])
    rows = target.take_logprobs(delta=False)
    assert rows is not None
    assert [next(iter(logprobs.values())).decoded_token for logprobs in rows] == decoded


def test_a_space_before_a_split_character_is_not_lost(tmp_path: Path) -> None:
    tokenizer, vocab = word_tokenizer(tmp_path, [" \udce6", "\udc97", "\udca5"])  # as some vocabularies split " 日"
    target = processor(tokenizer, logprobs=0)
    feed(target, list(vocab.values()))
    rows = target.take_logprobs(delta=False)
    assert rows is not None
    assert [next(iter(logprobs.values())).decoded_token for logprobs in rows] == ["", "", " 日"]


def test_a_byte_that_completes_nothing_is_empty(tiny_tokenizer: Tokenizer) -> None:
    target = processor(tiny_tokenizer, logprobs=0)
    feed(target, [0xE6])
    feed(target, [0xE6])
    rows = target.take_logprobs(delta=False)
    assert rows is not None
    assert [next(iter(logprobs.values())).decoded_token for logprobs in rows] == ["", ""]


def test_pieces_of_other_tokenizers(tmp_path: Path) -> None:
    tokenizer, vocab = piece_tokenizer(tmp_path, ["▁Hello"])
    target = processor(tokenizer, logprobs=0)
    for byte in "é".encode():
        feed(target, [vocab[f"<0x{byte:02X}>"]])
    rows = target.take_logprobs(delta=False)
    assert rows is not None
    assert [next(iter(logprobs.values())).decoded_token for logprobs in rows] == ["", "é"]


def test_prompt_logprobs(tiny_tokenizer: Tokenizer) -> None:
    target = processor(tiny_tokenizer, prompt="aé", prompt_logprobs=1)
    for start in (1, 2):  # two chunks of the prompt
        token = ids("aé")[start]
        columns = lists([[token, 98]], [[-1.0, -0.5]], [7])
        target.update_from_output(row("r", [], new_prompt_logprobs_tensors=columns), 0)
    expected = [
        None,
        {0xC3: Logprob(-1.0, 7, ""), 98: Logprob(-0.5, 1, "b")},
        {0xA9: Logprob(-1.0, 7, "é"), 98: Logprob(-0.5, 1, "b")},
    ]
    assert target.take_prompt_logprobs(delta=False) == expected
    assert target.take_prompt_logprobs(delta=True) == expected
    assert target.take_prompt_logprobs(delta=True) is None
    assert (target.take_logprobs(delta=True), target.cumulative_logprob) == (None, None)


def test_without_text_there_is_none_here_either(tiny_tokenizer: Tokenizer) -> None:
    for target in (processor(None, logprobs=0), processor(tiny_tokenizer, logprobs=0, detokenize=False)):
        feed(target, ids("a"))
        assert target.take_logprobs(delta=True) == [{97: Logprob(-1.0, 1, None)}]
