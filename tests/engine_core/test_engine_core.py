"""The order of a step, and what may happen in between."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from tests.engine_core.core_process import VOCAB_SIZE, add_letter, toy_config
from vllm_lite.engine_core.core import EngineCore, EngineCoreProc
from vllm_lite.engine_core.executor.toy import DEFAULT_BLOCKS, ToyExecutor, expected_tokens
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.messages import EngineCoreAbort, FinishReason
from vllm_lite.wire.step import ModelRunnerOutput, SchedulerOutput

PROMPT = list(b"the quick brown fox")


def add(core: EngineCore, request_id: str, prompt: list[int], **params: Any) -> None:
    core.add_request(core.preprocess_add_request(add_letter(request_id, prompt, SamplingParams(**params))))


def run(core: EngineCore) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    while core.scheduler.has_requests():
        for bag in core.step().values():
            for row in bag.outputs:
                tokens.setdefault(row.request_id, []).extend(row.new_token_ids)
    return tokens


def test_steps_until_nothing_is_left() -> None:
    core = EngineCore(toy_config(), ToyExecutor)
    assert core.step() == {}
    add(core, "a", PROMPT, max_tokens=5)
    add(core, "b", [1, 2], max_tokens=2)
    bags = core.step()
    assert [row.request_id for row in bags[0].outputs] == ["a", "b"]
    assert run(core) == {"a": expected_tokens(PROMPT, 5)[1:], "b": expected_tokens([1, 2], 2)[1:]}
    core.shutdown()
    core.shutdown()


def test_a_step_that_only_brings_news_lets_the_worker_forget() -> None:
    core = EngineCore(toy_config(), ToyExecutor)
    add(core, "a", PROMPT, max_tokens=1)
    assert [row.finish_reason for row in core.step()[0].outputs] == [FinishReason.LENGTH]
    assert core.step()[0].outputs == []
    assert core.model_executor.worker._requests == {}


def test_blocks_are_measured_unless_the_configuration_fixes_them() -> None:
    config = toy_config()
    assert EngineCore(config, ToyExecutor).kv_cache_config.num_blocks == config.cache_config.num_gpu_blocks == 100
    config = toy_config()
    config.cache_config.num_gpu_blocks_override = None
    assert EngineCore(config, ToyExecutor).kv_cache_config.num_blocks == DEFAULT_BLOCKS
    config = toy_config()
    config.cache_config.num_gpu_blocks_override = None
    config.cache_config.kv_cache_memory_bytes = 70 * 4 * 8
    assert EngineCore(config, ToyExecutor).kv_cache_config.num_blocks == 70


class Watched(ToyExecutor):
    """Counts shutdowns; `during_step` runs while the model does."""

    shutdowns = 0
    core: EngineCore | None = None
    during_step: Any = None

    def execute_model(self, scheduler_output: SchedulerOutput) -> Future[ModelRunnerOutput | None]:
        if self.during_step is not None:
            self.during_step()
        return super().execute_model(scheduler_output)

    def shutdown(self) -> None:
        type(self).shutdowns += 1
        super().shutdown()


def test_a_core_that_cannot_be_built_frees_its_executor() -> None:
    config = toy_config()
    config.model_config.max_model_len = 1000
    before = Watched.shutdowns
    with pytest.raises(VLLMValidationError, match="max_model_len"):
        EngineCore(config, Watched)
    assert Watched.shutdowns == before + 1


def test_case_16_an_abort_that_arrives_while_the_model_runs_wins_over_the_last_token() -> None:
    core = EngineCore(toy_config(), Watched)
    executor = core.model_executor
    assert isinstance(executor, Watched)
    executor.during_step = lambda: core.aborts_queue.put(EngineCoreAbort(["a", "a", "unknown"]))
    add(core, "a", PROMPT, max_tokens=1)
    add(core, "b", PROMPT, max_tokens=1)
    bags = core.step()
    assert [(row.request_id, row.finish_reason) for row in bags[0].outputs] == [("b", FinishReason.LENGTH)]
    assert core.scheduler.get_num_unfinished_requests() == 0


def test_aborting_returns_those_that_were_here() -> None:
    core = EngineCore(toy_config(), ToyExecutor)
    add(core, "a", PROMPT)
    add(core, "b", PROMPT)
    assert [request.request_id for request in core.abort_requests(["b", "unknown", "b"])] == ["b"]
    assert [request.request_id for request in core.abort_requests(None)] == ["a"]
    assert core.abort_requests(["a"]) == []


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "at least one token"),
        ([VOCAB_SIZE], rf"0 to {VOCAB_SIZE - 1}; got {VOCAB_SIZE}"),
        ([3, -1], r"got -1"),
        ([1] * 256, "at most 255 tokens long; got '256 tokens'"),
    ],
)
def test_a_prompt_that_would_hurt_its_step_is_refused(prompt: list[int], words: str) -> None:
    core = EngineCore(toy_config(), ToyExecutor)
    with pytest.raises(VLLMValidationError, match=words) as caught:
        core.preprocess_add_request(add_letter("r", prompt))
    assert caught.value.parameter == "prompt_token_ids"


def test_no_more_log_probabilities_than_the_engine_allows() -> None:
    core = EngineCore(toy_config(), ToyExecutor)
    core.preprocess_add_request(add_letter("r", [1], SamplingParams(logprobs=20)))
    with pytest.raises(VLLMValidationError, match="prompt_logprobs must be <= max_logprobs, which is 20; got -1"):
        core.preprocess_add_request(add_letter("r", [1], SamplingParams(prompt_logprobs=-1)))


def test_the_longest_prompts_leave_room_for_one_token_or_for_none_where_none_is_made() -> None:
    core = EngineCore(toy_config(), ToyExecutor)
    assert core.preprocess_add_request(add_letter("r", [1] * 255)).num_tokens == 255
    letter = add_letter("p", [1] * 256)
    letter.sampling_params, letter.pooling_params = None, PoolingParams()
    assert core.preprocess_add_request(letter).num_tokens == 256


def test_a_request_has_exactly_one_kind_of_parameters() -> None:
    core = EngineCore(toy_config(), ToyExecutor)
    letter = add_letter("r", [1])
    letter.pooling_params = PoolingParams()
    with pytest.raises(VLLMValidationError, match="either"):
        core.preprocess_add_request(letter)
    letter.sampling_params = letter.pooling_params = None
    with pytest.raises(VLLMValidationError, match="either"):
        core.preprocess_add_request(letter)


def test_pooling_is_refused_where_the_worker_does_not_pool() -> None:
    core = EngineCore(toy_config(), ToyExecutor)
    assert core.get_supported_tasks() == ["generate", "embed"]
    del core.worker_info["supported_tasks"]
    assert core.get_supported_tasks() == ["generate"]
    letter = add_letter("p", [1])
    letter.sampling_params, letter.pooling_params = None, PoolingParams()
    with pytest.raises(VLLMValidationError, match="pooling_params must be absent"):
        core.preprocess_add_request(letter)


@pytest.mark.parametrize("caching", [True, False])
def test_hashes_are_made_where_there_is_a_cache_for_them(caching: bool) -> None:
    config = toy_config()
    config.cache_config.enable_prefix_caching = caching
    request = EngineCore(config, ToyExecutor).preprocess_add_request(add_letter("r", PROMPT))
    assert len(request.block_hashes) == (4 if caching else 0)


def test_calls_for_everybody() -> None:
    core = EngineCore(toy_config(), ToyExecutor)
    add(core, "a", PROMPT)
    core.step()
    assert core.reset_prefix_cache() is False
    assert core.reset_prefix_cache(True) is True
    assert run(core)["a"] == expected_tokens(PROMPT, 16)[1:]
    assert core.collective_rpc("sleep_for", None, (0.0,)) == [0]


def test_both_classes_come_from_the_module_of_vllms_name() -> None:
    assert issubclass(EngineCoreProc, EngineCore)


@pytest.mark.parametrize(
    ("field", "value"), [("kv_cache_memory_bytes", 2**62), ("num_gpu_blocks_override", 2**58), ("toy_step_time", "x")]
)
def test_a_setting_that_the_worker_cannot_have_is_named(field: str, value: Any) -> None:
    config = toy_config(toy_step_time=value) if field == "toy_step_time" else toy_config()
    if field != "toy_step_time":
        config.cache_config.num_gpu_blocks_override = None
        setattr(config.cache_config, field, value)
    with pytest.raises(VLLMValidationError, match=f"^{field} must be .*; got {value!r}"):
        EngineCore(config, ToyExecutor)


def test_a_worker_that_fails_with_what_it_measured_itself_is_nobodys_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    config = toy_config()
    config.cache_config.num_gpu_blocks_override = None
    monkeypatch.setattr(ToyExecutor, "initialize_from_config", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        EngineCore(config, ToyExecutor)


def test_a_session_in_process() -> None:
    core = EngineCore(toy_config(), ToyExecutor)
    first = add_letter("s", PROMPT, SamplingParams(max_tokens=3), resumable=True)
    core.add_request(core.preprocess_add_request(first))
    answer = run(core)["s"]
    assert not core.has_work()
    part = add_letter("s", [7, 8], SamplingParams(max_tokens=2), resumable=True, continues=True)
    core.add_request(core.preprocess_add_request(part))
    assert run(core)["s"] == expected_tokens([*PROMPT, *answer[:2], 7, 8], 2)
    assert [request.request_id for request in core.abort_requests(["s"])] == ["s"]
    assert run(core) == {}
    assert core.scheduler.requests == {}


def test_bags_name_the_weights_once_somebody_has() -> None:
    core = EngineCore(toy_config(), ToyExecutor)
    add(core, "a", PROMPT, max_tokens=2)
    assert (core.get_weight_version(), core.step()[0].weight_version) == ("default", None)
    core.set_weight_version("v2")
    assert (core.get_weight_version(), core.step()[0].weight_version) == ("v2", "v2")
