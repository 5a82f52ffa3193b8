"""Token ids to text as they come, and the stop strings found in it.

Process: front end, for each request and token on the event loop: what is done here is done most often. Knows: one request's
ids and text. Does not know: outputs or collectors.
Text is held back only while its end may be the beginning of a stop string, or is part of a character.
Mirrors: vllm/v1/engine/detokenizer.py
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from vllm_lite.frontend.tokenizer import Tokenizer
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.messages import EngineCoreRequest

PROMPT_TAIL = 16  # ids of the prompt that the text of the answer can depend on
MOST_PENDING = 8  # ids without text; no character is split over more, so these are none

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """Counts tokens and makes no text: for requests with `detokenize=False`, and the base of the two that do."""

    def __init__(self) -> None:
        self.num_tokens = 0

    @classmethod
    def from_new_request(cls, tokenizer: Tokenizer | None, request: EngineCoreRequest) -> IncrementalDetokenizer:
        """The fastest kind that can serve this request."""
        params = request.sampling_params
        if tokenizer is None or params is None or not params.detokenize:
            return IncrementalDetokenizer()
        if tokenizer.is_byte_level:
            return ByteLevelDetokenizer(tokenizer, params)
        return StreamDetokenizer(tokenizer, params, request.prompt_token_ids or ())

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        """Take new ids in; returns the stop string that they complete, having cut `new_token_ids` after its last token.

        `stop_terminated`: the engine core ended the answer at a stop token, the last of the new ids; it is no text.
        """
        self.num_tokens += len(new_token_ids)
        return None

    def get_next_output_text(self, finished: bool, delta: bool) -> str:
        """The text that may go out: what is new (`delta`) or all of it. At the end nothing is held back."""
        return ""


class _TextDetokenizer(IncrementalDetokenizer):
    """What both text makers share: the text so far, stop strings, and what is held back.

    With stop strings each token is searched as it comes. A match counts where it ends beyond the first `min_tokens` tokens,
    and begins in text that was held back, so a match never takes back what has gone out.
    """

    def __init__(self, params: SamplingParams) -> None:
        super().__init__()
        self._parts: list[str] = []  # text not handed out yet, or all of it while nothing but snapshots is asked for
        self._stop = params.stop_strings
        self._include_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._tail = ""  # the last characters searched: a stop string may have begun in them
        self._tail_len = max(map(len, self._stop), default=1) - 1
        self._held = 0  # characters at the end of the text that may begin a stop string

    def _decode(self, token_id: int) -> str:
        """The text that `token_id` completes."""
        raise NotImplementedError

    def _flush(self) -> str:
        """The text of bytes that never became a character."""
        raise NotImplementedError

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        if stop_terminated and not self._include_stop and new_token_ids:
            return self._update_but_last(new_token_ids)
        self.num_tokens += len(new_token_ids)
        if not self._stop:
            for token_id in new_token_ids:
                self._parts.append(self._decode(token_id))
            return None
        return self._search(new_token_ids)

    def get_next_output_text(self, finished: bool, delta: bool) -> str:
        parts = self._parts
        if finished:
            parts.append(self._flush())
            self._held = 0
        text = parts[0] if len(parts) == 1 else "".join(parts)
        if self._held:
            out, held = text[: -self._held], text[-self._held :]
            self._parts = [held] if delta else [text]
            return out
        if delta:
            parts.clear()
        elif len(parts) > 1:
            self._parts = [text]
        return text

    def _update_but_last(self, new_token_ids: list[int]) -> str | None:
        """All but the stop token is text; the ids keep it."""
        before = new_token_ids[:-1]
        stop = self.update(before, stop_terminated=False)
        if stop is None:
            self.num_tokens += 1
        else:
            del new_token_ids[len(before) :]
        return stop

    def _search(self, new_token_ids: list[int]) -> str | None:
        first = self.num_tokens - len(new_token_ids)
        for i, token_id in enumerate(new_token_ids):
            text = self._decode(token_id)
            self._parts.append(text)
            searched = self._tail + text
            if first + i >= self._min_tokens:
                found = self._find_stop(searched, len(self._tail))
                if found is not None:
                    stop, surplus = found
                    self._cut(surplus)
                    del new_token_ids[i + 1 :]
                    self.num_tokens = first + i + 1
                    return stop
            self._tail = searched[-self._tail_len :] if self._tail_len else ""
            self._held = 0 if self._include_stop else self._possible_start()
        return None

    def _find_stop(self, searched: str, num_old: int) -> tuple[str, int] | None:
        """The stop string that completes earliest in the new part of `searched` (the first listed, of several), and how many
        characters at the end of the text are to go."""
        best: str | None = None
        best_end = len(searched) + 1
        for stop in self._stop:
            start = searched.find(stop, max(num_old - len(stop) + 1, 0))
            if start >= 0 and start + len(stop) < best_end:
                best, best_end = stop, start + len(stop)
        if best is None:
            return None
        kept = best_end if self._include_stop else best_end - len(best)
        return best, len(searched) - kept

    def _possible_start(self) -> int:
        """How many characters at the end of the text may begin a stop string."""
        tail, longest = self._tail, 0
        for stop in self._stop:
            start = tail.find(stop[0], max(len(tail) - len(stop) + 1, 0))
            while start >= 0:
                if stop.startswith(tail[start:]):
                    longest = max(longest, len(tail) - start)
                    break
                start = tail.find(stop[0], start + 1)
        return longest

    def _cut(self, surplus: int) -> None:
        """Take `surplus` characters off the end of the text; nothing more will come."""
        text = "".join(self._parts)
        self._parts = [text[: len(text) - surplus]]
        self._held = 0
        self._flush()


class ByteLevelDetokenizer(_TextDetokenizer):
    """For byte-level vocabularies: a table of each token's text, and a UTF-8 decoder only across split characters.

    The text is that of the answer's ids alone, as the tokenizer's `decode` gives it.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        super().__init__(params)
        self._pieces = tokenizer.pieces(params.skip_special_tokens)
        self._decoder: codecs.IncrementalDecoder | None = None  # exists while a character is incomplete

    def _decode(self, token_id: int) -> str:
        piece = self._pieces[token_id]
        if self._decoder is None and type(piece) is str:
            return piece
        return self._decode_bytes(piece.encode() if isinstance(piece, str) else piece)

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        """As above, with the common case, one token and no stop strings, first: it runs for nearly every token."""
        if len(new_token_ids) == 1 and self._decoder is None and not self._stop and not stop_terminated:
            piece = self._pieces[new_token_ids[0]]
            if type(piece) is str:
                self._parts.append(piece)
                self.num_tokens += 1
                return None
        return super().update(new_token_ids, stop_terminated)

    def _decode_bytes(self, raw: bytes) -> str:
        if self._decoder is None:
            self._decoder = _utf8_decoder("replace")
        text = self._decoder.decode(raw)
        if not self._decoder.getstate()[0]:
            self._decoder = None
        return text

    def _flush(self) -> str:
        if self._decoder is None:
            return ""
        text = self._decoder.decode(b"", final=True)
        self._decoder = None
        return text


class StreamDetokenizer(_TextDetokenizer):
    """For all other tokenizers: the library's stream, primed with the prompt so that a leading space is kept."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, prompt_token_ids: Sequence[int]) -> None:
        super().__init__(params)
        self._tokenizer = tokenizer
        self._skip_special_tokens = params.skip_special_tokens
        self._pending: list[int] = []  # ids whose text has not come out
        self._step = tokenizer.decode_stream(prompt_token_ids[-PROMPT_TAIL:], params.skip_special_tokens)

    def _decode(self, token_id: int) -> str:
        self._pending.append(token_id)
        try:
            text = self._step(token_id)
        except Exception:  # the library's plain Exception: after bytes that are no text, what it said before stands no more
            return self._restart()
        if text is None:
            return self._restart() if len(self._pending) > MOST_PENDING else ""
        self._pending.clear()
        return text

    def _restart(self) -> str:
        """Say what the pending ids are on their own, and begin anew after them."""
        self._step = self._tokenizer.decode_stream(self._pending[-1:], self._skip_special_tokens)
        return self._flush()

    def _flush(self) -> str:
        text = self._tokenizer.decode(self._pending, self._skip_special_tokens) if self._pending else ""
        self._pending.clear()
        return text
