"""What a caller receives.

Process: front end (and the caller's code). Knows: texts, ids, reasons. Does not know: how they came about.
Mirrors: vllm/outputs.py, vllm/logprobs.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Logprob:
    """Log probability (natural log, float32 precision) of one token; `rank` counts from 1 over the whole vocabulary."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


SampleLogprobs = list[dict[int, Logprob]]  # one dict per sampled token, keyed by token id
PromptLogprobs = list[dict[int, Logprob] | None]  # the first prompt token has none


@dataclass(slots=True)
class WeightVersionSpan:
    """Tokens `start` to `end` of an answer, the latter not included, were made with weights of that version."""

    version: str
    start: int
    end: int


@dataclass(slots=True)
class CompletionOutput:
    """One answer, or the new part of it.

    `token_ids` and `text` are new since the output before (DELTA) or everything so far (CUMULATIVE, FINAL_ONLY). Ids may run
    ahead of the text while a possible stop string is held back or a character is incomplete; at the end both agree.
    `finish_reason` is None until the answer ends, then one of "stop", "length", "abort", "error"; `stop_reason` is the stop
    string or stop token id that ended it. `weight_versions` is there at the end, where `update_weight_version()` was called.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: SampleLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    weight_versions: list[WeightVersionSpan] | None = None

    def finished(self) -> bool:
        """True once this answer has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """One letter to the caller: the request's answers (one for each of `n`), or their new parts.

    No `__len__` or `__bool__`: `get_nowait() or await get()` relies on every instance being true.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: PromptLogprobs | None
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int | None = None
    metrics: Any = None
    kv_transfer_params: dict[str, Any] | None = None

    def add(self, next_output: RequestOutput, aggregate: bool) -> None:
        """Staple a later output on to this one, by completion index.

        With `aggregate` (DELTA) text, ids and logprobs are appended; without, the newer completion replaces the older.
        """
        self.finished |= next_output.finished
        for new in next_output.outputs:
            for i, old in enumerate(self.outputs):
                if old.index == new.index:
                    if aggregate:
                        _append_completion(old, new)
                    else:
                        self.outputs[i] = new
                    break
            else:
                self.outputs.append(new)


def _append_completion(old: CompletionOutput, new: CompletionOutput) -> None:
    old.text += new.text
    old.token_ids.extend(new.token_ids)
    if new.logprobs:
        old.logprobs = (old.logprobs or []) + new.logprobs
    old.cumulative_logprob = new.cumulative_logprob
    old.finish_reason = new.finish_reason
    old.stop_reason = new.stop_reason
    old.weight_versions = new.weight_versions


# Ends a streaming-input session without a last letter. Compared by identity, never changed.
STREAM_FINISHED = RequestOutput("", None, None, None, [], finished=True)


@dataclass(slots=True)
class PoolingOutput:
    """`data`: numpy float32, shape [hidden_size]."""

    data: Any


@dataclass(slots=True)
class PoolingRequestOutput:
    """The answer to `encode()`."""

    request_id: str
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    finished: bool
    num_cached_tokens: int = 0
