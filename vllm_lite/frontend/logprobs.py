"""Columns of log probabilities from the worker to the dictionaries that callers read.

Process: front end, only for requests that ask for them. Knows: one request's log probabilities so far. Does not know: how text
is made; it asks the tokenizer for one token at a time.
Mirrors: vllm/v1/engine/logprobs.py
"""

from collections.abc import Sequence

from vllm_lite.frontend.tokenizer import Tokenizer
from vllm_lite.outputs import Logprob, PromptLogprobs, SampleLogprobs
from vllm_lite.wire.messages import EngineCoreOutput, EngineCoreRequest
from vllm_lite.wire.step import LogprobsLists

REPLACEMENT = "\ufffd"
MOST_BYTES = 4  # tokens that one character can be split over


class LogprobsProcessor:
    """One request's log probabilities: `logprobs` of the answer, `prompt_logprobs`, and the sum over the sampled tokens.

    Each is None where the request did not ask.
    """

    def __init__(self, tokenizer: Tokenizer | None, request: EngineCoreRequest) -> None:
        params = request.sampling_params
        assert params is not None
        self._tokenizer = tokenizer if params.detokenize else None
        self._prompt_token_ids = request.prompt_token_ids or []
        self._sampled: list[int] = []  # the last sampled tokens: what a split character began with
        self.logprobs: SampleLogprobs | None = None if params.logprobs is None else []
        self.prompt_logprobs: PromptLogprobs | None = None if params.prompt_logprobs is None else [None]
        self.cumulative_logprob: float | None = None if params.logprobs is None else 0.0

    def update_from_output(self, output: EngineCoreOutput, num_tokens: int) -> None:
        """Take in an output's rows, but of its sampled tokens only the first `num_tokens` (others lie behind a stop string)."""
        if output.new_prompt_logprobs_tensors is not None and self.prompt_logprobs is not None:
            self._add_prompt(output.new_prompt_logprobs_tensors)
        if output.new_logprobs is not None and self.logprobs is not None:
            for token_ids, logprobs, rank in _rows(output.new_logprobs, num_tokens):
                assert self.cumulative_logprob is not None
                self.cumulative_logprob += logprobs[0]
                self.logprobs.append(self._row(token_ids, logprobs, rank, self._sampled))
                self._sampled = [*self._sampled[1 - MOST_BYTES :], token_ids[0]]

    def take_logprobs(self, delta: bool) -> SampleLogprobs | None:
        """What is new since the last call (`delta`), or a snapshot of all."""
        if self.logprobs is None:
            return None
        taken = self.logprobs
        if delta:
            self.logprobs = []
            return taken
        return list(taken)

    def take_prompt_logprobs(self, delta: bool) -> PromptLogprobs | None:
        """The prompt's rows: with `delta` only once, when they are complete."""
        taken = self.prompt_logprobs
        if taken is None or not delta:
            return taken
        self.prompt_logprobs = None
        return taken

    def _add_prompt(self, tensors: LogprobsLists) -> None:
        assert self.prompt_logprobs is not None
        for token_ids, logprobs, rank in _rows(tensors, len(tensors.logprobs)):
            position = len(self.prompt_logprobs)
            before = self._prompt_token_ids[max(position - MOST_BYTES, 0) : position]
            self.prompt_logprobs.append(self._row(token_ids, logprobs, rank, before))

    def _row(self, token_ids: list[int], logprobs: list[float], rank: int, before: Sequence[int]) -> dict[int, Logprob]:
        """The chosen token first with its rank in the whole vocabulary, then the likeliest ones, ranked from 1."""
        row: dict[int, Logprob] = {}
        for i, (token_id, logprob) in enumerate(zip(token_ids, logprobs, strict=True)):
            if token_id not in row:
                row[token_id] = Logprob(logprob, rank if i == 0 else i, self._text(token_id, before))
        return row

    def _text(self, token_id: int, before: Sequence[int]) -> str | None:
        """The token's text; "" where it ends within a character, and all that was held back where it completes one."""
        if self._tokenizer is None:
            return None
        text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        if not text.endswith(REPLACEMENT):
            return text
        for count in range(1, min(MOST_BYTES, len(before)) + 1):
            whole = self._tokenizer.decode([*before[-count:], token_id], skip_special_tokens=False)
            if not whole.endswith(REPLACEMENT):
                return whole
        return ""


def _rows(lists: LogprobsLists, count: int) -> list[tuple[list[int], list[float], int]]:
    """The first `count` positions as plain numbers."""
    ids, logprobs = lists.logprob_token_ids[:count].tolist(), lists.logprobs[:count].tolist()
    ranks = lists.sampled_token_ranks[:count].tolist()
    return list(zip(ids, logprobs, ranks, strict=True))
