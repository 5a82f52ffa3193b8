"""How the next token is chosen and when an answer ends.

Process: all; made by the caller, checked here, sent to the engine core inside EngineCoreRequest. Knows: values and their
limits. Does not know: the model (what depends on it, such as the vocabulary, is checked by the InputProcessor).
Mirrors: vllm/sampling_params.py
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from vllm_lite.config.checks import check_bool, check_int, check_number, check_text, check_token_ids, refuse

GREEDY_BELOW = 1e-5  # a temperature below this is greedy, as in vLLM
MAX_N = 16384


class RequestOutputKind(IntEnum):
    """What each output of a stream holds."""

    CUMULATIVE = 0  # everything so far, as a snapshot
    DELTA = 1  # only what is new since the output before
    FINAL_ONLY = 2  # one output, at the end


class SamplingParams(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Sampling parameters of one request, with vLLM's names and defaults.

    Raises VLLMValidationError naming the field. Decoding it in another process runs the same checks again, so they change
    nothing the second time. Ratios are plain numbers; `top_k` 0 or -1 means all; `max_tokens` None means what room is left.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: list[str] | str | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    stream_interval: int | None = None
    extra_args: dict[str, Any] | None = None
    # Filled by the InputProcessor from the model's generation config; the sampler masks them until min_tokens.
    eos_token_id: int | None = None
    all_stop_token_ids: set[int] = msgspec.field(default_factory=set)
    bad_words_token_ids: list[list[int]] | None = None

    def __post_init__(self) -> None:
        if self.stop is None:
            self.stop = []
        elif isinstance(self.stop, str):
            self.stop = [self.stop]
        if self.top_k == -1:
            self.top_k = 0
        self._check_numbers()
        self._check_lists()
        self._check_combinations()

    @property
    def stop_strings(self) -> list[str]:
        """`stop` after normalisation: a list, perhaps empty."""
        assert isinstance(self.stop, list)
        return self.stop

    @property
    def greedy(self) -> bool:
        """True where the most likely token is taken without a random number."""
        return self.temperature < GREEDY_BELOW

    def clone(self) -> SamplingParams:
        """A copy whose containers are its own."""
        held = {name: getattr(self, name) for name in self.__struct_fields__}
        own = {name: value.copy() for name, value in held.items() if isinstance(value, list | set | dict)}
        return msgspec.structs.replace(self, **own)

    def check_model(self, vocab_size: int, max_logprobs: int) -> None:
        """Refuse what this model or engine cannot take. The front end asks, and the engine core again before a step suffers."""
        for field in ("stop_token_ids", "all_stop_token_ids", "allowed_token_ids", "logit_bias"):
            check_token_ids(field, getattr(self, field) or (), vocab_size)
        for word in self.bad_words_token_ids or ():
            check_token_ids("bad_words_token_ids", word or (-1,), vocab_size)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise refuse("allowed_token_ids", self.allowed_token_ids, "None or a list with at least one id")
        for field in ("logprobs", "prompt_logprobs"):
            asked = getattr(self, field)
            if asked is None:
                continue
            if asked > vocab_size:
                raise refuse(field, asked, f"-1 for all, or at most the size of the vocabulary, {vocab_size}")
            if max_logprobs != -1 and (vocab_size if asked == -1 else asked) > max_logprobs:
                raise refuse(field, asked, f"<= max_logprobs, which is {max_logprobs}")

    def _check_numbers(self) -> None:
        check_int("n", self.n, 1, MAX_N)
        check_number("presence_penalty", self.presence_penalty, -2, 2)
        check_number("frequency_penalty", self.frequency_penalty, -2, 2)
        check_number("repetition_penalty", self.repetition_penalty, 0, above_low=True)
        check_number("temperature", self.temperature, 0)
        check_number("top_p", self.top_p, 0, 1, above_low=True)
        check_int("top_k", self.top_k, 0)
        check_number("min_p", self.min_p, 0, 1)
        check_int("min_tokens", self.min_tokens, 0)
        for field in ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output"):
            check_bool(field, getattr(self, field))
        check_int("seed", self.seed, optional=True)
        check_int("max_tokens", self.max_tokens, 1, optional=True)
        check_int("stream_interval", self.stream_interval, 1, optional=True)
        check_int("logprobs", self.logprobs, -1, optional=True)
        check_int("prompt_logprobs", self.prompt_logprobs, -1, optional=True)

    def _check_lists(self) -> None:
        _check_texts("stop", self.stop, "a string or a list of non-empty strings")
        if self.bad_words is not None:
            _check_texts("bad_words", self.bad_words, "a list of non-empty strings")
        for field in ("stop_token_ids", "allowed_token_ids"):
            value = getattr(self, field)
            if value is None:
                continue
            if not isinstance(value, list | tuple) or not all(type(i) is int and i >= 0 for i in value):
                raise refuse(field, value, "a list of token ids (integers >= 0)")
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, dict):
                raise refuse("logit_bias", self.logit_bias, "a mapping from token id to bias")
            for token_id, bias in self.logit_bias.items():
                check_int("logit_bias key", token_id, 0)
                check_number(f"logit_bias[{token_id}]", bias, -100, 100)
        if self.extra_args is not None and not isinstance(self.extra_args, dict):
            raise refuse("extra_args", self.extra_args, "a mapping")

    def _check_combinations(self) -> None:
        if not isinstance(self.output_kind, RequestOutputKind):
            raise refuse("output_kind", self.output_kind, "a RequestOutputKind: CUMULATIVE, DELTA or FINAL_ONLY")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise refuse("min_tokens", self.min_tokens, f"<= max_tokens, which is {self.max_tokens}")
        if self.stop and not self.detokenize:
            raise refuse("stop", self.stop, "empty where detokenize is False, since stop strings are found in the text")
        if self.n > 1 and self.greedy:
            raise refuse("n", self.n, "1 where temperature is 0, since greedy answers are all the same")


def _check_texts(field: str, value: object, accepted: str) -> None:
    if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
        raise refuse(field, value, accepted)
    for text in value:
        check_text(field, text, accepted)
