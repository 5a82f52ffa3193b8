"""What a server asks besides generating: true answers, or a sentence that says why not."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.frontend.helpers import FINAL_ONLY, stop, toy_args
from vllm_lite import AsyncLLM, SamplingParams
from vllm_lite.exceptions import EngineDeadError, VLLMValidationError
from vllm_lite.outputs import RequestOutput, WeightVersionSpan
from vllm_lite.tracing.control_page import ControlPage
from vllm_lite.wire.stats import SchedulerStats


@pytest.fixture
async def llm(tiny_model_path: Path) -> AsyncIterator[AsyncLLM]:
    made = AsyncLLM.from_engine_args(toy_args(tiny_model_path, step_time=0.001))
    yield made
    made.shutdown()


async def answer(llm: AsyncLLM, prompt: str = "a prompt of several blocks, more than one") -> int | None:
    params = SamplingParams(max_tokens=2, ignore_eos=True, output_kind=FINAL_ONLY)
    (output,) = [output async for output in llm.generate(prompt, params, "r")]
    return output.num_cached_tokens


async def test_states_of_a_living_engine(llm: AsyncLLM) -> None:
    assert (llm.is_running, llm.is_stopped, llm.errored, llm.should_keep_api_server_alive) == (True, False, False, False)
    assert isinstance(llm.dead_error, EngineDeadError)
    assert llm.dead_error is not llm.dead_error
    assert llm.tokenizer is llm.get_tokenizer()
    assert await llm.get_supported_tasks() == ("generate", "embed")


async def test_ready_completes_the_configuration(llm: AsyncLLM) -> None:
    assert llm.vllm_config.cache_config.num_gpu_blocks is not None
    assert llm.model_config is llm.vllm_config.model_config
    assert llm.model_config.max_model_len == 512


async def test_prefixes_are_cached_until_the_cache_is_reset(llm: AsyncLLM) -> None:
    assert [await answer(llm), await answer(llm)] == [0, 32]
    assert await llm.reset_prefix_cache() is True
    assert await answer(llm) == 0
    with pytest.raises(NotImplementedError, match="no KV connector"):
        await llm.reset_prefix_cache(reset_connector=True)


async def test_collective_rpc(llm: AsyncLLM) -> None:
    (info,) = await llm.collective_rpc("get_info")
    assert info["attention_backend"] == "toy"
    with pytest.raises(RuntimeError, match="no_such_method"):
        await llm.collective_rpc("no_such_method", args=(1,), kwargs={"a": 2})


async def test_health(llm: AsyncLLM) -> None:
    await llm.check_health()
    pid = llm.engine_core.ready[0].pid
    stop(pid)
    with pytest.raises(EngineDeadError, match="stopped or stuck"):
        await llm.check_health(0.2)
    assert not llm.errored  # it may go on
    os.kill(pid, signal.SIGCONT)
    await llm.check_health()
    llm.shutdown()
    with pytest.raises(EngineDeadError, match="was shut down"):
        await llm.check_health()


async def test_tracing_can_be_switched_on_and_off(llm: AsyncLLM) -> None:
    assert await llm.is_tracing_enabled() is False
    page = ControlPage.open(Path(llm.observability_config.trace_dir or ""))
    page.level = 1
    assert await llm.is_tracing_enabled() is True
    page.close()


async def test_stats_are_logged_where_wanted(llm: AsyncLLM, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="vllm_lite")
    await llm.do_log_stats()
    assert llm.logger_manager is not None
    llm.logger_manager.record(SchedulerStats(num_running_reqs=3, num_waiting_reqs=2, kv_cache_usage=0.125), None)
    await llm.do_log_stats()
    llm.logger_manager = None
    await llm.do_log_stats()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("running 3 requests, waiting 2, KV cache used 12.5 %")


async def test_what_is_not_served_says_so(llm: AsyncLLM) -> None:
    lora = (llm.add_lora(object()), llm.remove_lora(1), llm.list_loras(), llm.pin_lora(1))
    for call in (llm.notify_kv_transfer_request_rejected("r", {}), *lora):
        with pytest.raises(NotImplementedError, match=r"\w+ \w+ \w+"):
            await call


async def test_what_has_nothing_to_do_succeeds(llm: AsyncLLM) -> None:
    await llm.reset_mm_cache()
    await llm.reset_encoder_cache()
    assert (await llm.is_sleeping(), await llm.is_paused()) == (False, False)


# ---- pauses ----------------------------------------------------------------------------------------------------------------


def answering(llm: AsyncLLM, name: str = "r", count: int = 30) -> asyncio.Task[RequestOutput]:
    params = SamplingParams(max_tokens=count, ignore_eos=True, temperature=0, output_kind=FINAL_ONLY)

    async def last() -> RequestOutput:
        (output,) = [output async for output in llm.generate([1, 2, 3], params, name)]
        return output

    return asyncio.create_task(last())


async def has_begun(llm: AsyncLLM) -> None:
    while not any(not state.is_prefilling for state in llm.output_processor.request_states.values()):  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_waiting_until_nothing_is_in_flight(llm: AsyncLLM) -> None:
    await llm.pause_generation(mode="keep")
    task = answering(llm)
    while not llm.get_num_unfinished_requests():  # noqa: ASYNC110
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await llm.wait_for_requests_to_drain(0.03)
    await llm.resume_generation()
    await llm.wait_for_requests_to_drain()
    llm.shutdown()  # whoever has not read yet has lost nothing
    assert len((await task).outputs[0].token_ids) == 30


async def test_a_pause_that_aborts(llm: AsyncLLM) -> None:
    task = answering(llm, count=400)
    await has_begun(llm)
    await llm.pause_generation()
    assert (await task).outputs[0].finish_reason == "abort"
    assert (await llm.is_paused(), await llm.is_sleeping()) == (True, True)
    waiting = answering(llm, "later")
    await llm.check_health()
    assert not waiting.done()
    await llm.resume_generation()
    assert (await waiting).outputs[0].finish_reason == "length"
    assert await llm.is_paused() is False


@pytest.mark.parametrize("clear_cache", [False, True])
async def test_a_pause_that_keeps_goes_on_with_the_same_tokens(llm: AsyncLLM, clear_cache: bool) -> None:
    expected = (await answering(llm)).outputs[0].token_ids
    task = answering(llm, "kept")
    await has_begun(llm)
    await llm.pause_generation(mode="keep", clear_cache=clear_cache)
    await llm.check_health()
    assert not task.done()
    await llm.resume_generation()
    assert (await task).outputs[0].token_ids == expected


async def test_a_pause_that_waits_lets_the_begun_end(llm: AsyncLLM) -> None:
    task = answering(llm, "begun")
    await has_begun(llm)
    await llm.pause_generation(mode="wait")
    assert (await task).outputs[0].finish_reason == "length"
    await llm.resume_generation()


async def test_sleep_and_wake_up(llm: AsyncLLM) -> None:
    expected = (await answering(llm)).outputs[0].token_ids
    await llm.sleep(level=1)
    assert await llm.is_sleeping() is True
    with pytest.raises(RuntimeError, match="wake_up"):
        await llm.resume_generation()
    assert await llm.wake_up(["weights"]) is False
    assert await llm.wake_up() is True
    assert await llm.is_sleeping() is False
    assert (await answering(llm)).outputs[0].token_ids == expected


async def test_the_kv_cache_of_a_paused_engine_can_be_released(llm: AsyncLLM) -> None:
    with pytest.raises(RuntimeError, match="once the engine is paused"):
        await llm.release_kv_cache_memory()
    await llm.pause_generation()
    await llm.release_kv_cache_memory()
    assert await llm.wake_up(["kv_cache"]) is True


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda llm: llm.pause_generation(mode="stop"), "mode"),
        (lambda llm: llm.pause_generation(clear_cache=1), "clear_cache"),
        (lambda llm: llm.sleep(3), "level"),
        (lambda llm: llm.sleep(1, mode="stop"), "mode"),
        (lambda llm: llm.start_profile(delay_iterations=-1), "delay_iterations"),
        (lambda llm: llm.start_profile(max_iterations="1"), "max_iterations"),
        (lambda llm: llm.start_profile(5), "profile_prefix"),
        (lambda llm: llm.update_weight_version(2), "new_version"),
        (lambda llm: llm.update_weight_version(""), "new_version"),
        (lambda llm: llm.wake_up("weights"), "tags"),
        (lambda llm: llm.wake_up(["coffee"]), "tags"),
        (lambda llm: llm.reset_prefix_cache(1), "reset_running_requests"),
        (lambda llm: llm.check_health("1"), "seconds"),
        (lambda llm: llm.wait_for_requests_to_drain(None), "drain_timeout"),
        (lambda llm: llm.collective_rpc(5), "method"),
        (lambda llm: llm.collective_rpc("get_info", "1"), "timeout"),
        (lambda llm: llm.collective_rpc("get_info", args=5), "args"),
        (lambda llm: llm.collective_rpc("get_info", kwargs=[]), "kwargs"),
        (lambda llm: llm.abort(5), "request_id"),
        (lambda llm: llm.abort(["a", None]), "request_id"),
    ],
)
async def test_bad_arguments_are_refused_by_name(llm: AsyncLLM, call: Any, field: str) -> None:
    with pytest.raises(VLLMValidationError) as caught:
        await call(llm)
    assert caught.value.parameter == field


async def test_a_shutdown_that_was_refused_can_be_asked_for_again(llm: AsyncLLM) -> None:
    with pytest.raises(VLLMValidationError, match="timeout must be"):
        llm.shutdown("soon")  # type: ignore[arg-type]
    assert not llm.errored
    llm.shutdown()
    assert llm.errored


async def test_case_17_a_pause_that_still_waits_fails_when_the_engine_dies(llm: AsyncLLM) -> None:
    task = answering(llm, count=400)
    await has_begun(llm)
    pausing = asyncio.create_task(llm.pause_generation(mode="wait"))
    await llm.check_health()
    os.kill(llm.engine_core.ready[0].pid, signal.SIGKILL)
    for waiting in (pausing, task):
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await asyncio.wait_for(waiting, 5)


async def test_profiles_reach_the_workers(llm: AsyncLLM) -> None:
    """The toy executor has none to give, and says so."""
    with pytest.raises(RuntimeError, match="profile"):
        await llm.start_profile("mine")
    with pytest.raises(RuntimeError, match="profile"):
        await llm.stop_profile()


async def test_answers_say_which_weights_made_them(llm: AsyncLLM) -> None:
    assert await llm.get_weight_version() == "default"
    assert (await answering(llm)).outputs[0].weight_versions is None
    task = answering(llm, count=400)
    await has_begun(llm)
    await llm.update_weight_version("v2")
    assert await llm.get_weight_version() == "v2"
    first, second = (await task).outputs[0].weight_versions or ()
    assert (first.version, first.start, second.version, second.end) == ("default", 0, "v2", 400)
    assert 0 < first.end == second.start < 400
    assert (await answering(llm, count=3)).outputs[0].weight_versions == [WeightVersionSpan("v2", 0, 3)]


async def test_without_a_tokenizer(tiny_model_path: Path) -> None:
    llm = AsyncLLM.from_engine_args(toy_args(tiny_model_path, skip_tokenizer_init=True))
    assert llm.tokenizer is None
    with pytest.raises(VLLMValidationError, match="skip_tokenizer_init"):
        llm.get_tokenizer()
    params = SamplingParams(max_tokens=2, ignore_eos=True, output_kind=FINAL_ONLY)
    (output,) = [output async for output in llm.generate([1, 2], params, "r")]
    assert (output.outputs[0].text, len(output.outputs[0].token_ids)) == ("", 2)
    llm.shutdown()
