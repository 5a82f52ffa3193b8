"""When an output goes out, and that it is a value of its own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frontend.helpers import CUMULATIVE, DELTA, FINAL_ONLY, ids, request, texts, token_ids
from vllm_lite import RequestOutputKind
from vllm_lite.frontend.collector import RequestOutputCollector
from vllm_lite.frontend.request_state import RequestState
from vllm_lite.frontend.tokenizer import Tokenizer
from vllm_lite.outputs import RequestOutput
from vllm_lite.wire.messages import FinishReason


def stream(
    tokenizer: Tokenizer, text: str, kind: RequestOutputKind, *, engine_interval: int = 1, **params: Any
) -> list[RequestOutput]:
    """All outputs of an answer that comes byte by byte and ends by length."""
    queue = RequestOutputCollector(kind, "r")
    state = RequestState(tokenizer, request(output_kind=kind, **params), "prompt", queue, stream_interval=engine_interval)
    outputs = []
    for i, token in enumerate(ids(text)):
        reason = FinishReason.LENGTH if i == len(text.encode()) - 1 else None
        state.detokenizer.update([token], stop_terminated=False)
        output = state.make_request_output([token], reason, None)
        if output is not None:
            outputs.append(output)
    return outputs


def test_deltas(tiny_tokenizer: Tokenizer) -> None:
    outputs = stream(tiny_tokenizer, "abc", DELTA)
    assert (texts(outputs), token_ids(outputs)) == (["a", "b", "c"], [[97], [98], [99]])
    assert [(o.finished, o.outputs[0].finish_reason) for o in outputs] == [(False, None), (False, None), (True, "length")]
    assert {(o.request_id, o.prompt, tuple(o.prompt_token_ids or ())) for o in outputs} == {("ext-r", "prompt", (1, 2, 3))}


def test_case_3_snapshots_never_change(tiny_tokenizer: Tokenizer) -> None:
    outputs = stream(tiny_tokenizer, "abc", CUMULATIVE)
    assert (texts(outputs), token_ids(outputs)) == (["a", "ab", "abc"], [[97], [97, 98], [97, 98, 99]])


def test_only_the_final_output(tiny_tokenizer: Tokenizer) -> None:
    outputs = stream(tiny_tokenizer, "abc", FINAL_ONLY)
    assert (texts(outputs), token_ids(outputs), outputs[0].finished) == (["abc"], [[97, 98, 99]], True)


def test_case_10_deltas_at_an_interval(tiny_tokenizer: Tokenizer) -> None:
    outputs = stream(tiny_tokenizer, "abcdefgh", DELTA, stream_interval=3)
    assert texts(outputs) == ["a", "bcd", "efg", "h"]
    assert token_ids(outputs) == [ids(text) for text in texts(outputs)]


def test_case_10_snapshots_at_an_interval(tiny_tokenizer: Tokenizer) -> None:
    """vLLM pays no heed to the interval here; we do."""
    assert texts(stream(tiny_tokenizer, "abcdefgh", CUMULATIVE, stream_interval=3)) == ["a", "abcd", "abcdefg", "abcdefgh"]


@pytest.mark.parametrize(("own", "engine"), [(3, 1), (1, 3), (3, 2), (None, 3)])
def test_the_longer_interval_counts(tiny_tokenizer: Tokenizer, own: int | None, engine: int) -> None:
    outputs = stream(tiny_tokenizer, "abcde", DELTA, engine_interval=engine, stream_interval=own)
    assert texts(outputs) == ["a", "bcd", "e"]


def test_ids_run_ahead_of_a_split_character(tiny_tokenizer: Tokenizer) -> None:
    outputs = stream(tiny_tokenizer, "é", DELTA)
    assert (texts(outputs), token_ids(outputs)) == (["", "é"], [[0xC3], [0xA9]])


@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE, FINAL_ONLY])
@pytest.mark.parametrize("interval", [1, 3, 50])
def test_text_and_ids_agree_at_the_end(tiny_tokenizer: Tokenizer, kind: RequestOutputKind, interval: int) -> None:
    """S1."""
    outputs = stream(tiny_tokenizer, "naïve 日本", kind, stream_interval=interval, stop=["ZZZZ"])
    if kind is DELTA:
        text, tokens = "".join(texts(outputs)), [i for chunk in token_ids(outputs) for i in chunk]
    else:
        text, tokens = texts(outputs)[-1], token_ids(outputs)[-1]
    assert (text, tokens) == ("naïve 日本", ids("naïve 日本"))


def test_stop_reason_and_cached_tokens(tiny_tokenizer: Tokenizer) -> None:
    state = RequestState(tiny_tokenizer, request(), None, RequestOutputCollector(DELTA, "r"))
    state.num_cached_tokens = 2
    output = state.make_request_output([7], FinishReason.STOP, 7)
    assert output is not None
    assert (output.outputs[0].stop_reason, output.outputs[0].finish_reason, output.num_cached_tokens) == (7, "stop", 2)
