"""Text as it comes equals the text of all ids at the end, and no part of a stop string ever goes out."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frontend.helpers import DELTA, EOS, ids, piece_tokenizer, request, word_tokenizer
from vllm_lite.frontend.detokenizer import (
    ByteLevelDetokenizer,
    IncrementalDetokenizer,
    StreamDetokenizer,
)
from vllm_lite.frontend.tokenizer import Tokenizer

WORDS = ["a", "b", "c", "ST", "OP", "OP tail", "STOP", "STO", "P", "DEF", "G", "HI", "J", "X", "日本"]


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, dict[str, int]]:
    return word_tokenizer(tmp_path_factory.mktemp("words"), WORDS)


def new(tokenizer: Tokenizer | None, prompt: list[int] | None = None, **params: Any) -> IncrementalDetokenizer:
    return IncrementalDetokenizer.from_new_request(tokenizer, request(prompt_token_ids=prompt, **params))


def run(
    detokenizer: IncrementalDetokenizer, chunks: Sequence[list[int]], *, stopped: bool = False
) -> tuple[list[str], list[list[int]], str | None]:
    """Deltas, the ids kept of each chunk, and the stop string. The last chunk ends the answer; `stopped`: at a stop token."""
    deltas, kept = [], []
    for i, chunk in enumerate(chunks):
        last = i == len(chunks) - 1
        new_ids = list(chunk)
        stop = detokenizer.update(new_ids, stop_terminated=last and stopped)
        kept.append(new_ids)
        deltas.append(detokenizer.get_next_output_text(last or stop is not None, delta=True))
        if stop is not None:
            return deltas, kept, stop
    return deltas, kept, None


def spell(words: tuple[Tokenizer, dict[str, int]], *names: str) -> list[list[int]]:
    return [[words[1][name]] for name in names]


def test_which_kind_serves_whom(tiny_tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert type(new(tiny_tokenizer)) is ByteLevelDetokenizer
    assert type(new(piece_tokenizer(tmp_path, ["▁a"])[0])) is StreamDetokenizer
    assert type(new(tiny_tokenizer, detokenize=False)) is IncrementalDetokenizer
    assert type(new(None)) is IncrementalDetokenizer


def test_without_a_tokenizer_tokens_are_only_counted() -> None:
    detokenizer = new(None)
    assert run(detokenizer, [[1], [2, 3]]) == (["", ""], [[1], [2, 3]], None)
    assert detokenizer.num_tokens == 3


# ---- stop strings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("include", "deltas"), [(False, ["a", "b", "c", "", ""]), (True, ["a", "b", "c", "ST", "OP"])], ids=["cut", "kept"]
)
def test_case_5_a_stop_string_across_tokens(words: tuple[Tokenizer, dict[str, int]], include: bool, deltas: list[str]) -> None:
    """Only what may begin a stop string is held back, so a, b and c come at once (vLLM holds back three characters always)."""
    detokenizer = new(words[0], stop="STOP", include_stop_str_in_output=include)
    assert run(detokenizer, spell(words, "a", "b", "c", "ST", "OP tail"))[::2] == (deltas, "STOP")
    assert detokenizer.num_tokens == 5


def test_case_6_the_earliest_completing_stop_string_wins(words: tuple[Tokenizer, dict[str, int]]) -> None:
    assert run(new(words[0], stop=["STOP", "STO"]), spell(words, "a", "STOP"))[::2] == (["a", ""], "STO")
    assert run(new(words[0], stop=["OP", "STOP"]), spell(words, "a", "STOP"))[::2] == (["a", "ST"], "OP")  # a tie: by order
    assert run(new(words[0], stop=["STOP", "OP"]), spell(words, "a", "STOP"))[::2] == (["a", ""], "STOP")


def test_case_6_text_is_searched_once(words: tuple[Tokenizer, dict[str, int]]) -> None:
    detokenizer = new(words[0], stop="STOP", min_tokens=1)
    assert run(detokenizer, spell(words, "STOP", "a", "STO", "P"))[::2] == (["STOP", "a", "", ""], "STOP")


@pytest.mark.parametrize(("position", "stop"), [(1, None), (4, None), (5, "STOP"), (6, "STOP")])
def test_case_7_stop_strings_within_min_tokens_are_ignored(
    words: tuple[Tokenizer, dict[str, int]], position: int, stop: str | None
) -> None:
    names = ["a"] * 8
    names[position - 1] = "STOP"
    deltas, _, found = run(new(words[0], stop="STOP", min_tokens=4), spell(words, *names))
    assert found == stop
    assert "".join(deltas) == "".join(names if stop is None else names[: position - 1])


def test_case_7_a_match_may_begin_before_the_boundary(words: tuple[Tokenizer, dict[str, int]]) -> None:
    assert run(new(words[0], stop="STOP", min_tokens=2), spell(words, "a", "ST", "OP"))[::2] == (["a", "", ""], "STOP")


def test_s8_min_tokens_counts_inside_a_step(words: tuple[Tokenizer, dict[str, int]]) -> None:
    one_step = [[i for chunk in spell(words, "a", "STOP", "b", "STOP", "c") for i in chunk]]
    deltas, kept, stop = run(new(words[0], stop="STOP", min_tokens=3), one_step)
    assert (deltas, kept, stop) == (["aSTOPb"], [one_step[0][:4]], "STOP")


def test_case_9_what_lies_behind_the_stop_string_is_dropped(words: tuple[Tokenizer, dict[str, int]]) -> None:
    one_step = [[i for chunk in spell(words, "a", "ST", "OP tail", "b", "c", "J") for i in chunk]]
    detokenizer = new(words[0], stop="STOP")
    assert run(detokenizer, one_step) == (["a"], [one_step[0][:3]], "STOP")
    assert detokenizer.num_tokens == 3


@pytest.mark.parametrize(
    ("include", "skip_special", "text"),
    [(False, True, "ab"), (False, False, "ab"), (True, True, "ab"), (True, False, "ab<eos>")],
)
def test_case_8_a_stop_token_is_no_text_unless_asked_for(
    tiny_tokenizer: Tokenizer, include: bool, skip_special: bool, text: str
) -> None:
    detokenizer = new(tiny_tokenizer, include_stop_str_in_output=include, skip_special_tokens=skip_special)
    deltas, kept, stop = run(detokenizer, [ids("a"), [*ids("b"), EOS]], stopped=True)
    assert ("".join(deltas), kept, stop) == (text, [ids("a"), [*ids("b"), EOS]], None)
    assert detokenizer.num_tokens == 3


def test_case_8_a_stop_string_before_the_stop_token(words: tuple[Tokenizer, dict[str, int]]) -> None:
    eos = words[0].eos_token_id
    assert eos is not None
    chunk = [words[1]["a"], words[1]["STOP"], words[1]["b"], eos]
    assert run(new(words[0], stop="STOP"), [chunk], stopped=True) == (["a"], [chunk[:2]], "STOP")


def test_case_8_held_back_text_comes_out_at_the_end(words: tuple[Tokenizer, dict[str, int]]) -> None:
    assert run(new(words[0], stop="STOP"), spell(words, "a", "STO")) == (["a", "STO"], spell(words, "a", "STO"), None)
    detokenizer = new(words[0], stop="STOP")
    assert detokenizer.update([words[1]["ST"]], stop_terminated=False) is None
    assert detokenizer.get_next_output_text(finished=False, delta=True) == ""
    assert detokenizer.get_next_output_text(finished=True, delta=True) == "ST"  # an abort


def test_s6_every_suffix_that_may_begin_a_stop_string_is_held_back(words: tuple[Tokenizer, dict[str, int]]) -> None:
    assert run(new(words[0], stop="DEFGHIJ"), spell(words, "DEF", "G", "HI", "J"))[::2] == ([""] * 4, "DEFGHIJ")
    assert run(new(words[0], stop="DEFGHIJ"), spell(words, "DEF", "X", "a"))[0] == ["", "DEFX", "a"]
    assert run(new(words[0], stop=["STOP", "TOP"]), spell(words, "a", "STO", "X"))[0] == ["a", "", "STOX"]


def test_s7_no_empty_delta_while_no_stop_string_has_begun(words: tuple[Tokenizer, dict[str, int]]) -> None:
    deltas, _, _ = run(new(words[0], stop=["ZZZZZZZZZZ", "\n\nUser:"]), spell(words, "a", "b", "DEF", "日本", "STOP"))
    assert deltas == ["a", "b", "DEF", "日本", "STOP"]


def test_nothing_is_held_back_where_the_stop_string_may_be_seen(words: tuple[Tokenizer, dict[str, int]]) -> None:
    detokenizer = new(words[0], stop="DEFGHIJ", include_stop_str_in_output=True)
    assert run(detokenizer, spell(words, "DEF", "G", "HI", "J"))[0] == ["DEF", "G", "HI", "J"]


def test_snapshots(words: tuple[Tokenizer, dict[str, int]]) -> None:
    detokenizer, seen = new(words[0], stop="STOP"), []
    for name in ("a", "ST", "X", "ST"):
        detokenizer.update([words[1][name]], stop_terminated=False)
        seen.append(detokenizer.get_next_output_text(finished=False, delta=False))
    seen.append(detokenizer.get_next_output_text(finished=True, delta=False))
    assert seen == ["a", "a", "aSTX", "aSTX", "aSTXST"]


# ---- characters ------------------------------------------------------------------------------------------------------------


def test_split_characters_come_whole(tiny_tokenizer: Tokenizer) -> None:
    chunks = [[byte] for byte in "é日😀".encode()]
    assert run(new(tiny_tokenizer), chunks)[0] == ["", "é", "", "", "日", "", "", "", "😀"]


def test_a_character_that_stays_incomplete_is_marked_at_the_end(tiny_tokenizer: Tokenizer) -> None:
    assert run(new(tiny_tokenizer), [ids("a"), [0xE6], [0x97]])[0] == ["a", "", "\ufffd"]
    assert run(new(tiny_tokenizer), [[0xE6], ids("a"), [EOS]], stopped=True)[0] == ["", "\ufffda", ""]


@pytest.mark.parametrize("skip", [True, False])
@settings(deadline=None)
@given(data=st.data())
def test_deltas_join_to_the_text_of_all_ids(tiny_tokenizer: Tokenizer, skip: bool, data: st.DataObject) -> None:
    chunks = data.draw(st.lists(st.lists(st.integers(0, 330), max_size=3), min_size=1, max_size=20))
    deltas, _, _ = run(new(tiny_tokenizer, skip_special_tokens=skip), chunks)
    assert "".join(deltas) == tiny_tokenizer.decode([i for chunk in chunks for i in chunk], skip)


# ---- stop strings, against a slow and obvious twin -------------------------------------------------------------------------


def prefixes(tokens: Sequence[int]) -> Iterator[str]:
    """The text after each token; bytes of an incomplete character are no text yet."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = ""
    for token in tokens:
        text += decoder.decode(bytes([token]))
        yield text


def expected(tokens: list[int], stops: list[str], include: bool, min_tokens: int) -> tuple[str, int, str | None]:
    """Whole text, number of tokens kept, stop string."""
    before = ""
    for count, text in enumerate(prefixes(tokens), start=1):
        if count > min_tokens:
            ends = [
                (end, order)
                for order, stop in enumerate(stops)
                for end in range(len(before) + 1, len(text) + 1)
                if text[:end].endswith(stop)
            ]
            if ends:
                end, order = min(ends)
                return text[: end if include else end - len(stops[order])], count, stops[order]
        before = text
    return bytes(tokens).decode(errors="replace"), len(tokens), None


LETTERS = st.sampled_from([*b"ab", 0xC3, 0xA9])
STOPS = st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.lists(LETTERS, min_size=1, max_size=3), min_size=1, max_size=12), STOPS, st.booleans(), st.integers(0, 6))
def test_stop_strings_equal_the_slow_twin(
    tiny_tokenizer: Tokenizer, chunks: list[list[int]], stops: list[str], include: bool, min_tokens: int
) -> None:
    tokens = [i for chunk in chunks for i in chunk]
    detokenizer = new(tiny_tokenizer, stop=stops, include_stop_str_in_output=include, min_tokens=min_tokens)
    deltas, kept, stop = run(detokenizer, chunks)
    text, count, expected_stop = expected(tokens, stops, include, min_tokens)
    assert ("".join(deltas), sum(map(len, kept)), stop) == (text, count, expected_stop)
    assert detokenizer.num_tokens == count


@settings(deadline=None, max_examples=200)
@given(st.lists(LETTERS, min_size=1, max_size=12), STOPS)
def test_no_more_is_held_back_than_must_be(tiny_tokenizer: Tokenizer, tokens: list[int], stops: list[str]) -> None:
    detokenizer = new(tiny_tokenizer, stop=stops)
    out = ""
    for token, text in zip(tokens, prefixes(tokens), strict=True):
        if detokenizer.update([token], stop_terminated=False) is not None:
            return
        out += detokenizer.get_next_output_text(finished=False, delta=True)
        begun = max(length for stop in stops for length in range(len(stop)) if text.endswith(stop[:length]))
        assert out == text[: len(text) - begun]


# ---- other tokenizers ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, dict[str, int]]:
    return piece_tokenizer(tmp_path_factory.mktemp("pieces"), ["▁Hello", "▁world", "!", "日"])


def test_a_leading_space_is_kept_after_a_prompt(pieces: tuple[Tokenizer, dict[str, int]]) -> None:
    tokenizer, vocab = pieces
    detokenizer = new(tokenizer, [vocab["▁Hello"]])
    assert run(detokenizer, [[vocab["▁world"]], [vocab["!"]]])[0] == [" world", "!"]


def test_byte_tokens_become_characters(pieces: tuple[Tokenizer, dict[str, int]]) -> None:
    tokenizer, vocab = pieces
    chunks = [[vocab[f"<0x{byte:02X}>"]] for byte in "é".encode()]
    assert run(new(tokenizer, [vocab["▁Hello"]]), [*chunks, [vocab["!"]]])[0] == ["", "é", "!"]


def test_a_stop_string_in_pieces(pieces: tuple[Tokenizer, dict[str, int]]) -> None:
    tokenizer, vocab = pieces
    chunks = [[vocab["▁Hello"]], [vocab["▁world"]], [vocab["!"]]]
    assert run(new(tokenizer, [vocab["!"]], stop="o w"), chunks)[::2] == ([" Hell", ""], "o w")


def test_unfinished_bytes_are_marked_at_the_end(pieces: tuple[Tokenizer, dict[str, int]]) -> None:
    tokenizer, vocab = pieces
    assert run(new(tokenizer, [vocab["!"]]), [[vocab["!"]], [vocab["<0xE6>"]]])[0] == ["!", "\ufffd"]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.one_of(st.integers(3 + 0x80, 3 + 0xFF), st.integers(259, 261)), max_size=40))
def test_s3_bytes_that_are_no_text_never_stop_the_stream(pieces: tuple[Tokenizer, dict[str, int]], tokens: list[int]) -> None:
    """Whatever stands for the bytes, every word between them comes out, in order."""
    tokenizer, vocab = pieces
    deltas, _, _ = run(new(tokenizer, [vocab["!"]]), [[token] for token in tokens] or [[]])
    words = {vocab["▁Hello"]: " Hello", vocab["▁world"]: " world", vocab["!"]: "!"}
    seen = "".join(symbol for symbol in "".join(deltas) if symbol in " Helloworld!")
    assert seen == "".join(words.get(token, "") for token in tokens)


def test_s3_recovery_goes_on_after_ten_thousand_steps(pieces: tuple[Tokenizer, dict[str, int]]) -> None:
    tokenizer, vocab = pieces
    noise = [3 + (7 * i * i + i) % 256 for i in range(10_000)]
    deltas, _, _ = run(new(tokenizer, [vocab["!"]]), [[token] for token in noise] + [[vocab["▁Hello"]]])
    assert deltas[-1].endswith("Hello")


def test_output_kind_does_not_matter_here(tiny_tokenizer: Tokenizer) -> None:
    assert run(new(tiny_tokenizer, output_kind=DELTA), [ids("ab")])[0] == ["ab"]
