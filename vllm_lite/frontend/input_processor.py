"""From a rendered prompt and its parameters to an EngineCoreRequest, with every check that needs to know the model.

Process: front end. Knows: the model's limits, its vocabulary, its end tokens. Does not know: sockets, collectors. What passes
here cannot hurt the engine core: a bad value is refused now, by name, and no other request ever hears of it.
Mirrors: vllm/v1/engine/input_processor.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

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
        lora_request: object | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        session_id: str | None = None,
        kv_hints: dict[str, Any] | None = None,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: dict[str, Any] | None = None,
        resumable: bool = False,
        num_tokens_before: int = 0,
    ) -> EngineCoreRequest:
        """The request, with its own copy of `params`. A prompt that is not rendered is rendered here, which may block.

        `arrival_time` is the wall clock in seconds; now, where neither it nor the prompt says. A `resumable` request is part of
        a session that has `num_tokens_before` already.
        """
        if not isinstance(request_id, str) or not request_id:
            raise refuse("request_id", request_id, "a non-empty string")
        if arrival_time is not None:
            check_number("arrival_time", arrival_time, 0)
        _check_extras(kv_hints, reasoning_ended, reasoning_parser_kwargs)
        self._check_task(params, supported_tasks)
        self._check_routing(lora_request, priority, data_parallel_rank, session_id)
        rendered = self.renderer.render(prompt, tokenization_kwargs)
        ids = rendered["prompt_token_ids"]
        self._check_prompt(ids, num_tokens_before, generates=isinstance(params, SamplingParams))
        params = params.clone()
        if isinstance(params, SamplingParams):
            self._complete(params, num_tokens_before + len(ids))
        request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=ids,
            mm_features=None,
            sampling_params=params if isinstance(params, SamplingParams) else None,
            pooling_params=params if isinstance(params, PoolingParams) else None,
            arrival_time=rendered.get("arrival_time", time.time() if arrival_time is None else arrival_time),
            cache_salt=rendered.get("cache_salt"),
            data_parallel_rank=data_parallel_rank,
            priority=priority,
            trace_headers=None if trace_headers is None else dict(trace_headers),
            resumable=resumable,
            session_id=session_id,
            kv_hints=kv_hints,
            reasoning_ended=reasoning_ended,
            reasoning_parser_kwargs=reasoning_parser_kwargs,
        )
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
        if isinstance(params, SamplingParams):
            needed = "generate"
        elif isinstance(params, PoolingParams):
            needed = params.task
        else:
            raise refuse("params", params, "SamplingParams or PoolingParams")
        if needed not in supported_tasks:
            raise refuse("params", type(params).__name__, f"for a task this engine serves ({', '.join(supported_tasks)})")

    def _check_routing(
        self,
        lora_request: object | None,
        priority: int,
        data_parallel_rank: int | None,
        session_id: object,
    ) -> None:
        if lora_request is not None:
            raise refuse("lora_request", lora_request, "None: LoRA adapters are not served")
        check_int("priority", priority, -INT64_MAX)
        if priority != 0 and self.vllm_config.scheduler_config.policy != "priority":
            raise refuse("priority", priority, "0 unless the engine runs with --scheduling-policy priority")
        if data_parallel_rank is not None:
            check_int("data_parallel_rank", data_parallel_rank, 0, self.vllm_config.parallel_config.data_parallel_size - 1)
        if session_id is not None:
            check_text("session_id", session_id)

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
            raise refuse("prompt", len(ids), f"at most {room} tokens long ({why})")
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


def arguments_of(request: EngineCoreRequest) -> dict[str, Any]:
    """The arguments of `add_request()` that mean the same as `request`, so that it passes the checks that they pass."""
    carried = ["request_id", "arrival_time", "lora_request", "data_parallel_rank", "priority", "trace_headers", "session_id"]
    carried += ["kv_hints", "reasoning_ended", "reasoning_parser_kwargs"]
    prompt = {"type": "token", "prompt_token_ids": request.prompt_token_ids, "cache_salt": request.cache_salt}
    for field in request.__struct_fields__:
        value = getattr(request, field)
        if value and field not in (*carried, *prompt, "sampling_params", "pooling_params"):
            raise refuse(field, value, "left alone in an EngineCoreRequest that is given as a prompt")
    if request.sampling_params is not None and request.pooling_params is not None:
        raise refuse("pooling_params", request.pooling_params, "None in an EngineCoreRequest that has sampling_params")
    arguments = {field: getattr(request, field) for field in carried}
    return arguments | {"prompt": prompt, "params": request.sampling_params or request.pooling_params}


def _check_extras(kv_hints: object, reasoning_ended: object, reasoning_parser_kwargs: object) -> None:
    """What travels with a request as it is; `_check_wire` looks at the values inside."""
    for field, value in (("kv_hints", kv_hints), ("reasoning_parser_kwargs", reasoning_parser_kwargs)):
        if value is not None:
            check_mapping(field, value)
    if reasoning_ended is not None:
        check_bool("reasoning_ended", reasoning_ended)
