"""What passes the input processor cannot hurt the engine core; what does not is refused by the field's name."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontend.helpers import EOS, ids, toy_config, word_tokenizer
from vllm_lite import PoolingParams, SamplingParams, VllmConfig
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.frontend.input_processor import DISABLE_RANDOM_IDS, InputProcessor
from vllm_lite.frontend.renderer import Renderer

OTHER_EOS = 259  # <|im_end|>
LENGTH = 64  # max_model_len


@pytest.fixture
def config(tiny_model_path: Path) -> VllmConfig:
    return toy_config(tiny_model_path, max_model_len=LENGTH)


@pytest.fixture
def processor(config: VllmConfig) -> InputProcessor:
    return InputProcessor(config, Renderer.from_config(config))


def test_a_request(processor: InputProcessor) -> None:
    params = SamplingParams(max_tokens=5, stop_token_ids=[7])
    before = time.time()
    request = processor.process_inputs("mine", "hi", params, trace_headers={"a": "b"}, session_id="s", kv_hints={"k": 1})
    assert before <= request.arrival_time <= time.time()
    assert (request.request_id, request.prompt_token_ids, request.external_req_id) == ("mine", [104, 105], None)
    assert (request.trace_headers, request.session_id, request.kv_hints) == ({"a": "b"}, "s", {"k": 1})
    assert (request.priority, request.data_parallel_rank, request.pooling_params) == (0, None, None)
    assert request.sampling_params is not params
    assert params == SamplingParams(max_tokens=5, stop_token_ids=[7])  # the caller's stay as they were


def test_arrival_time(processor: InputProcessor) -> None:
    assert processor.process_inputs("r", "hi", SamplingParams(), arrival_time=3.5).arrival_time == 3.5
    rendered = {"type": "token", "prompt_token_ids": [1], "arrival_time": 2.5}
    assert processor.process_inputs("r", rendered, SamplingParams(), arrival_time=3.5).arrival_time == 2.5


def sampling(processor: InputProcessor, prompt: Any = "hi", **params: Any) -> SamplingParams:
    request = processor.process_inputs("r", prompt, SamplingParams(**params))
    assert request.sampling_params is not None
    return request.sampling_params


def test_end_tokens(processor: InputProcessor) -> None:
    plain = sampling(processor)
    assert (plain.eos_token_id, plain.stop_token_ids, plain.all_stop_token_ids) == (EOS, [OTHER_EOS], {EOS, OTHER_EOS})
    more = sampling(processor, stop_token_ids=[7])
    assert (more.stop_token_ids, more.all_stop_token_ids) == ([7, OTHER_EOS], {7, EOS, OTHER_EOS})
    ignored = sampling(processor, stop_token_ids=[7], ignore_eos=True)
    assert (ignored.eos_token_id, ignored.stop_token_ids, ignored.all_stop_token_ids) == (EOS, [7], {7, EOS, OTHER_EOS})


def test_the_tokenizers_end_token_is_the_primary_one(tiny_model_path: Path) -> None:
    config = toy_config(tiny_model_path)
    config.model_config.generation_config = {"eos_token_id": [OTHER_EOS, EOS]}
    assert sampling(InputProcessor(config, Renderer.from_config(config))).eos_token_id == EOS
    config.model_config.skip_tokenizer_init = True
    assert sampling(InputProcessor(config, Renderer.from_config(config)), [1]).eos_token_id == OTHER_EOS


def test_no_max_tokens_means_the_room_that_is_left(processor: InputProcessor) -> None:
    assert sampling(processor, [1] * 10, max_tokens=None).max_tokens == LENGTH - 10
    with pytest.raises(VLLMValidationError, match="min_tokens must be <= 4, the room that the prompt leaves; got 5"):
        sampling(processor, [1] * (LENGTH - 4), max_tokens=None, min_tokens=5)


def test_bad_words_in_both_positions(tmp_path: Path, config: VllmConfig) -> None:
    tokenizer, words = word_tokenizer(tmp_path, ["no", " no"])
    params = sampling(InputProcessor(config, Renderer(config.model_config, tokenizer)), [1], bad_words=["n"])
    assert params.bad_words_token_ids == [ids("n"), ids(" n")]
    assert words  # the merges are missing, so words fall apart into bytes here


@pytest.mark.parametrize("length", [1, LENGTH - 1])
def test_prompts_that_fit(processor: InputProcessor, length: int) -> None:
    assert processor.process_inputs("r", [1] * length, SamplingParams()).prompt_token_ids == [1] * length


@pytest.mark.parametrize(
    ("length", "accepted"),
    [
        (0, "least one token long; got []"),
        (64, "most 63 tokens long (max_model_len, 64, less one for the answer): shorten it or raise max_model_len; got 64"),
    ],
)
def test_prompts_that_do_not(processor: InputProcessor, length: int, accepted: str) -> None:
    with pytest.raises(VLLMValidationError, match=f"^prompt must be at {re.escape(accepted)}$") as caught:
        processor.process_inputs("r", [1] * length, SamplingParams())
    assert caught.value.parameter == "prompt"


BAD_PARAMS = [
    ("stop_token_ids", {"stop_token_ids": [320]}),
    ("allowed_token_ids", {"allowed_token_ids": [320]}),
    ("allowed_token_ids", {"allowed_token_ids": []}),
    ("logit_bias", {"logit_bias": {320: 1.0}}),
    ("logprobs", {"logprobs": 21}),
    ("logprobs", {"logprobs": -1}),
    ("prompt_logprobs", {"prompt_logprobs": 21}),
    ("extra_args", {"extra_args": {"mine": 1}}),
]


@pytest.mark.parametrize(("named", "params"), BAD_PARAMS)
def test_parameters_that_this_model_cannot_serve(processor: InputProcessor, named: str, params: dict[str, Any]) -> None:
    with pytest.raises(VLLMValidationError) as caught:
        sampling(processor, **params)
    assert caught.value.parameter == named


@pytest.mark.parametrize("ids", [[320], [-1], [0, 5, 10**12]])
def test_ids_outside_the_vocabulary(processor: InputProcessor, ids: list[int]) -> None:
    with pytest.raises(VLLMValidationError, match="0 to 319; got") as caught:
        processor.process_inputs("r", ids, SamplingParams())
    assert caught.value.parameter == "prompt_token_ids"


def test_any_number_of_logprobs_where_the_engine_allows_it(config: VllmConfig) -> None:
    config.model_config.max_logprobs = -1
    processor = InputProcessor(config, Renderer.from_config(config))
    assert sampling(processor, logprobs=-1, prompt_logprobs=320).logprobs == -1


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_never_more_logprobs_than_there_are_tokens(config: VllmConfig, field: str) -> None:
    config.model_config.max_logprobs = -1
    processor = InputProcessor(config, Renderer.from_config(config))
    with pytest.raises(VLLMValidationError, match=f"^{field} must be -1 for all, or at most the size of the vocabulary, 320"):
        sampling(processor, **{field: 321})


def test_what_the_processor_fills_in_is_never_the_callers(processor: InputProcessor) -> None:
    params = SamplingParams()
    params.bad_words_token_ids = [[2**62]]
    params.all_stop_token_ids = {2**62}
    params.eos_token_id = 2**62
    assert processor.process_inputs("r", "hi", params).sampling_params == sampling(processor)


def test_numpys_floats_are_floats(processor: InputProcessor) -> None:
    assert sampling(processor, temperature=np.float64(0.5)).temperature == 0.5


def test_parameters_changed_behind_the_checks_are_checked_again(processor: InputProcessor) -> None:
    params = SamplingParams()
    params.temperature = float("nan")
    with pytest.raises(VLLMValidationError) as caught:
        processor.process_inputs("r", "hi", params)
    assert caught.value.parameter == "temperature"


def nested(depth: int) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    for _ in range(depth):
        hints = {"a": hints}
    return hints


@pytest.mark.parametrize(
    ("named", "arguments"),
    [
        ("request_id", {"request_id": ""}),
        ("request_id", {"request_id": 5}),
        ("params", {"params": {"temperature": 0}}),
        ("params", {"params": PoolingParams()}),
        ("lora_request", {"lora_request": object()}),
        ("priority", {"priority": 1}),
        ("priority", {"priority": "high"}),
        ("data_parallel_rank", {"data_parallel_rank": 1}),
        ("session_id", {"session_id": 3}),
        ("kv_hints", {"kv_hints": {"x": object()}}),
        ("kv_hints", {"kv_hints": {"x": 2**70}}),
        ("kv_hints", {"kv_hints": 5}),
        ("kv_hints", {"kv_hints": {None: 1}}),
        ("kv_hints", {"kv_hints": nested(5000)}),
        ("reasoning_ended", {"reasoning_ended": "x"}),
        ("reasoning_parser_kwargs", {"reasoning_parser_kwargs": {"x": object()}}),
        ("reasoning_parser_kwargs", {"reasoning_parser_kwargs": [1]}),
        ("tokenization_kwargs", {"tokenization_kwargs": 5}),
        ("tokenization_kwargs", {"tokenization_kwargs": ["a"]}),
        ("truncate_prompt_tokens", {"tokenization_kwargs": {"truncate_prompt_tokens": 2**80}}),
        ("arrival_time", {"arrival_time": "now"}),
        ("arrival_time", {"arrival_time": 10**400}),
        ("request_id", {"request_id": "\ud800"}),
        ("session_id", {"session_id": "\ud800"}),
        ("trace_headers", {"trace_headers": {"a": "\ud800"}}),
        ("options", {"client_index": 1}),
        ("prompt", {"prompt": {"prompt": "a", "multi_modal_data": {"image": 1}}}),
    ],
)
def test_arguments_that_are_refused(processor: InputProcessor, named: str, arguments: dict[str, Any]) -> None:
    whole = {"request_id": "r", "prompt": "hi", "params": SamplingParams(), **arguments}
    with pytest.raises(VLLMValidationError, match=f"^{re.escape(named)} must be") as caught:
        processor.process_inputs(whole.pop("request_id"), whole.pop("prompt"), whole.pop("params"), **whole)
    assert caught.value.parameter == named


def test_priority_where_the_scheduler_reads_it(tiny_model_path: Path) -> None:
    config = toy_config(tiny_model_path)
    config.scheduler_config.policy = "priority"
    processor = InputProcessor(config, Renderer.from_config(config))
    assert processor.process_inputs("r", "hi", SamplingParams(), priority=-3).priority == -3


def test_pooling_where_it_is_served(processor: InputProcessor) -> None:
    request = processor.process_inputs("r", [1] * LENGTH, PoolingParams(), supported_tasks=("embed",))
    assert (request.sampling_params, request.pooling_params) == (None, PoolingParams())


def test_internal_ids_are_random_and_keep_the_callers(processor: InputProcessor) -> None:
    requests = [processor.process_inputs("mine", "hi", SamplingParams()) for _ in range(50)]
    for request in requests:
        processor.assign_request_id(request)
    assert {request.external_req_id for request in requests} == {"mine"}
    assert len({request.request_id for request in requests}) == 50
    assert all(re.fullmatch("mine-[0-9a-f]{8}", request.request_id) for request in requests)
    with pytest.raises(ValueError, match="was given an internal id before"):
        processor.assign_request_id(requests[0])


def test_internal_ids_can_be_the_callers(config: VllmConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISABLE_RANDOM_IDS, "1")
    processor = InputProcessor(config, Renderer.from_config(config))
    request = processor.process_inputs("mine", "hi", SamplingParams())
    processor.assign_request_id(request)
    assert (request.request_id, request.external_req_id) == ("mine", "mine")
