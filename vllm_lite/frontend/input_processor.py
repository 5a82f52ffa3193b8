"""From a rendered prompt and its parameters to an EngineCoreRequest, with every check that needs to know the model.

Process: front end. Knows: the model's limits, its vocabulary, its end tokens. Does not know: sockets, collectors. What passes
here cannot hurt the engine core: a bad value is refused now, by name, and no other request ever hears of it.
Mirrors: vllm/v1/engine/input_processor.py
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import msgspec

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import (
    INT64_MAX,
    check_bool,
    check_int,
    check_mapping,
    check_number,
    check_text,
    check_token_ids,
    refuse,
)
from vllm_lite.frontend.renderer import Prompt, Renderer
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.messages import EngineCoreRequest
from vllm_lite.wire.serial_utils import MsgpackEncoder

DISABLE_RANDOM_IDS = "VLLM_LITE_DISABLE_REQUEST_ID_RANDOMIZATION"


class RequestOptions(TypedDict, total=False):
    """What may be said of a request beside its prompt and parameters, and travels with it."""

    lora_request: Any  # refused: LoRA adapters are not served
    priority: int  # the lower, the sooner; with --scheduling-policy priority
    data_parallel_rank: int | None  # which engine core; None: the one with the least to do
    session_id: str | None
    kv_hints: dict[str, Any] | None
    reasoning_ended: bool | None
    reasoning_parser_kwargs: dict[str, Any] | None


class InputProcessor:
    """Makes requests. Raises VLLMValidationError that names the field, and keeps nothing of a request."""

    def __init__(self, vllm_config: VllmConfig, renderer: Renderer) -> None:
        self.vllm_config = vllm_config
        self.model_config = vllm_config.model_config
        self.renderer = renderer
        self.vocab_size = self.model_config.vocab_size
        self._eos_token_id, self._other_eos_ids = self._end_tokens()
        self._encoder = MsgpackEncoder()
        self._random_ids = os.environ.get(DISABLE_RANDOM_IDS, "0") in ("", "0")

    def process_inputs(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | PoolingParams,
        *,
        supported_tasks: Sequence[str] = ("generate",),
        arrival_time: float | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        resumable: bool = False,
        num_tokens_before: int = 0,
        **options: Unpack[RequestOptions],
    ) -> EngineCoreRequest:
        """The request, with its own copy of `params`. A prompt that is not rendered is rendered here, which may block.

        `arrival_time` is the wall clock in seconds; now, where neither it nor the prompt says. A `resumable` request is part of
        a session that has `num_tokens_before` already.
        """
        check_options(options)
        self._check_task(params, supported_tasks)
        rendered = self.renderer.render(prompt, tokenization_kwargs)
        params = params.clone()
        request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=rendered["prompt_token_ids"],
            mm_features=None,
            sampling_params=params if isinstance(params, SamplingParams) else None,
            pooling_params=params if isinstance(params, PoolingParams) else None,
            arrival_time=rendered.get("arrival_time", time.time() if arrival_time is None else arrival_time),
            cache_salt=rendered.get("cache_salt"),
            trace_headers=None if trace_headers is None else dict(trace_headers),
            resumable=resumable,
            **options,
        )
        self._check_fields(request)
        self._check_prompt(rendered["prompt_token_ids"], num_tokens_before, generates=isinstance(params, SamplingParams))
        if isinstance(params, SamplingParams):
            self._complete(params, num_tokens_before + len(rendered["prompt_token_ids"]))
        self._check_wire(request)
        return request

    def assign_request_id(self, request: EngineCoreRequest) -> None:
        """Keep the caller's id as `external_req_id` and make `request_id` unique by 8 random characters.

        Two requests in a row under one id never meet in the engine core, where the first may still be winding down.
        """
        if request.external_req_id is not None:
            raise ValueError(f"request {request.request_id!r} was given an internal id before")
        request.external_req_id = request.request_id
        if self._random_ids:
            request.request_id = f"{request.request_id}-{os.urandom(4).hex()}"

    def _end_tokens(self) -> tuple[int | None, set[int]]:
        """The primary end token (the tokenizer's own, where it is one of the model's) and the others."""
        ids = [token_id for token_id in self.model_config.eos_token_ids if token_id < self.vocab_size]
        tokenizer = self.renderer.tokenizer
        primary = None if tokenizer is None else tokenizer.eos_token_id
        if primary is None and ids:
            primary = ids[0]
        return primary, set(ids) - {primary}

    def _check_task(self, params: object, supported_tasks: Sequence[str]) -> None:
        if not isinstance(params, SamplingParams | PoolingParams):
            raise refuse("params", params, "SamplingParams or PoolingParams")
        needed = "generate" if isinstance(params, SamplingParams) else params.task
        if needed not in supported_tasks:
            raise refuse("params", type(params).__name__, f"for a task this engine serves ({', '.join(supported_tasks)})")

    def _check_fields(self, request: EngineCoreRequest) -> None:
        """What travels with a request; of values inside mappings only `_check_wire` knows."""
        if not isinstance(request.request_id, str) or not request.request_id:
            raise refuse("request_id", request.request_id, "a non-empty string")
        check_number("arrival_time", request.arrival_time, 0)
        if request.lora_request is not None:
            raise refuse("lora_request", request.lora_request, "None: LoRA adapters are not served")
        check_int("priority", request.priority, -INT64_MAX)
        if request.priority != 0 and self.vllm_config.scheduler_config.policy != "priority":
            raise refuse("priority", request.priority, "0 unless the engine runs with --scheduling-policy priority")
        if request.data_parallel_rank is not None:
            last = self.vllm_config.parallel_config.data_parallel_size - 1
            check_int("data_parallel_rank", request.data_parallel_rank, 0, last)
        if request.session_id is not None:
            check_text("session_id", request.session_id)
        if request.reasoning_ended is not None:
            check_bool("reasoning_ended", request.reasoning_ended)
        for field in ("kv_hints", "reasoning_parser_kwargs"):
            if getattr(request, field) is not None:
                check_mapping(field, getattr(request, field))

    def _check_wire(self, request: EngineCoreRequest) -> None:
        """Refuse what msgpack cannot hold before anybody has heard of the request, and say which field it is in."""
        if self._fits(msgspec.structs.replace(request, prompt_token_ids=None)):  # true integers, checked above
            return
        fields = [(name, getattr(holder, name)) for holder in (request.params, request) for name in holder.__struct_fields__]
        field, value = next((name, value) for name, value in fields if not self._fits(value))
        accepted = (
            "plain values that msgpack can hold: no integers beyond 64 bits, no text with lone surrogates, not nested too deep"
        )
        raise refuse(field, value, accepted)

    def _fits(self, value: object) -> bool:
        try:
            self._encoder.encode(value)
        except TypeError:
            return False
        return True

    def _check_prompt(self, ids: list[int], num_tokens_before: int, *, generates: bool) -> None:
        limit = self.model_config.max_model_len
        assert limit is not None
        room = limit - generates - num_tokens_before
        if not ids:
            raise refuse("prompt", ids, "at least one token long")
        if len(ids) > room:
            why = f"max_model_len, {limit}{', less one for the answer' if generates else ''}"
            why += f", less {num_tokens_before} tokens of the session" if num_tokens_before else ""
            raise refuse("prompt", len(ids), f"at most {room} tokens long ({why}): shorten it or raise max_model_len")
        check_token_ids("prompt_token_ids", ids, self.vocab_size)

    def _complete(self, params: SamplingParams, prompt_len: int) -> None:
        """Check what depends on the model, and fill in what the model decides."""
        assert self.model_config.max_model_len is not None
        if params.extra_args:
            raise refuse("extra_args", params.extra_args, "empty: there is no custom logits processor that reads them")
        if params.max_tokens is None:
            params.max_tokens = self.model_config.max_model_len - prompt_len
            if params.min_tokens > params.max_tokens:
                raise refuse("min_tokens", params.min_tokens, f"<= {params.max_tokens}, the room that the prompt leaves")
        params.eos_token_id = self._eos_token_id
        params.all_stop_token_ids = {*(params.stop_token_ids or ()), *self._other_eos_ids}
        if self._eos_token_id is not None:
            params.all_stop_token_ids.add(self._eos_token_id)
        if not params.ignore_eos and self._other_eos_ids:
            params.stop_token_ids = sorted({*(params.stop_token_ids or ()), *self._other_eos_ids})
        params.bad_words_token_ids = self._bad_words(params.bad_words) if params.bad_words else None
        params.check_model(self.vocab_size, self.model_config.max_logprobs)

    def _bad_words(self, words: list[str]) -> list[list[int]]:
        """The ids of each word at the start of a text and inside one, where most tokenizers glue a space to it."""
        tokenizer = self.renderer.get_tokenizer()
        found: list[list[int]] = []
        for word in words:
            for form in (word, f" {word.lstrip()}"):
                ids = tokenizer.encode(form, add_special_tokens=False)
                if ids and ids not in found:
                    found.append(ids)
        return found


def check_options(options: Iterable[str]) -> None:
    """Refuse names that are no RequestOptions."""
    for name in options:
        if name not in RequestOptions.__annotations__:
            raise refuse("options", name, f"among {', '.join(RequestOptions.__annotations__)}")


def arguments_of(request: EngineCoreRequest) -> dict[str, Any]:
    """The arguments of `add_request()` that mean the same as `request`, so that it passes the checks that they pass."""
    carried = ["request_id", "arrival_time", "trace_headers", *RequestOptions.__annotations__]
    prompt = {"type": "token", "prompt_token_ids": request.prompt_token_ids, "cache_salt": request.cache_salt}
    for field in request.__struct_fields__:
        value = getattr(request, field)
        if value and field not in (*carried, *prompt, "sampling_params", "pooling_params"):
            raise refuse(field, value, "left alone in an EngineCoreRequest that is given as a prompt")
    if request.sampling_params is not None and request.pooling_params is not None:
        raise refuse("pooling_params", request.pooling_params, "None in an EngineCoreRequest that has sampling_params")
    arguments = {field: getattr(request, field) for field in carried}
    return arguments | {"prompt": prompt, "params": request.sampling_params or request.pooling_params}
