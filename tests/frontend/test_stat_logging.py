"""What AsyncLLM counts, from real engine cores: totals that agree with what the callers got."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.frontend.helpers import DELTA, FINAL_ONLY, toy_args
from vllm_lite import AsyncLLM, SamplingParams
from vllm_lite.exceptions import QueueOverflowError
from vllm_lite.metrics.loggers import PrometheusStatLogger
from vllm_lite.tracing.journey.load import load_run


class Mine(PrometheusStatLogger):
    """Known by its class."""


async def count(llm: AsyncLLM, name: str, **params: Any) -> int:
    """How many tokens a caller got."""
    given = SamplingParams(**{"max_tokens": 5, "ignore_eos": True, "output_kind": DELTA, **params})
    outputs = [output async for output in llm.generate([1, 2, 3], given, name)]
    return sum(len(part.token_ids) for output in outputs for part in output.outputs)


def value(llm: AsyncLLM, name: str, **labels: str) -> float | None:
    assert llm.logger_manager is not None
    registry = llm.logger_manager.prometheus.registry
    return registry.get_sample_value(f"vllm:{name}", {"model_name": "m", "engine": "0", **labels})


async def test_totals_agree_with_the_callers(tiny_model_path: Path) -> None:
    llm = AsyncLLM.from_engine_args(toy_args(tiny_model_path, served_model_name="m"))
    got = await asyncio.gather(
        count(llm, "a"), count(llm, "b", output_kind=FINAL_ONLY), count(llm, "c", n=2, temperature=1.0, max_tokens=3)
    )
    assert got == [5, 5, 6]
    assert value(llm, "generation_tokens_total") == 16
    assert value(llm, "prompt_tokens_total") == 12
    assert value(llm, "request_success_total", finished_reason="length") == 4
    assert (value(llm, "request_params_n_count"), value(llm, "request_params_n_sum")) == (3, 4)
    assert value(llm, "request_max_num_generation_tokens_sum") == 13
    assert value(llm, "time_to_first_token_seconds_count") == 4
    assert value(llm, "inter_token_latency_seconds_count") == 12
    assert value(llm, "request_queue_time_seconds_count") == 4
    llm.shutdown()


@pytest.mark.parametrize(("limit", "reason"), [("max_num_queued_reqs", "reqs"), ("max_num_queued_tokens", "tokens")])
async def test_case_15_a_rejection_is_counted_once(tiny_model_path: Path, limit: str, reason: str) -> None:
    llm = AsyncLLM.from_engine_args(toy_args(tiny_model_path, served_model_name="m", step_time=0.2, **{limit: 1}))
    first = asyncio.create_task(count(llm, "a", max_tokens=2))
    while not llm.get_num_unfinished_requests():  # noqa: ASYNC110
        await asyncio.sleep(0)
    with pytest.raises(QueueOverflowError):
        await count(llm, "b", n=3, temperature=1.0)
    assert llm.logger_manager is not None
    counted = llm.logger_manager.prometheus.registry.get_sample_value(
        "vllm:admission_rejections_total", {"model_name": "m", "reason": f"max_num_queued_{reason}"}
    )
    assert counted == 1
    assert llm.get_num_unfinished_requests() == 1
    await first
    llm.shutdown()


async def test_without_statistics_nothing_is_counted(tiny_model_path: Path) -> None:
    config = toy_args(tiny_model_path).create_engine_config()
    llm = AsyncLLM.from_vllm_config(config, disable_log_stats=True)
    assert await count(llm, "a") == 5
    assert (llm.logger_manager, llm.log_stats) == (None, False)
    await llm.do_log_stats()
    llm.shutdown()


async def test_t1_tracing_needs_no_statistics(tiny_model_path: Path, tmp_path: Path) -> None:
    config = toy_args(tiny_model_path, trace_level=3, trace_dir=str(tmp_path / "run")).create_engine_config()
    llm = AsyncLLM.from_vllm_config(config, disable_log_stats=True)
    assert await count(llm, "a", n=2, temperature=1.0) == 10
    llm.shutdown()
    (request,) = load_run(tmp_path / "run").requests
    assert request.close is not None
    assert (request.close.outcome, len(request.posts)) == ("finished", 2)


async def test_a_logger_of_ones_own_is_enough(tiny_model_path: Path) -> None:
    config = toy_args(tiny_model_path, served_model_name="m").create_engine_config()
    llm = AsyncLLM.from_vllm_config(config, disable_log_stats=True, stat_loggers=[Mine])
    assert llm.log_stats is True
    assert await count(llm, "a") == 5
    assert llm.logger_manager is not None
    assert type(llm.logger_manager.prometheus) is Mine
    assert value(llm, "generation_tokens_total") == 5
    await llm.sleep(2)
    assert value(llm, "engine_sleep_state", sleep_state="discard_all") == 1
    await llm.wake_up()
    assert value(llm, "engine_sleep_state", sleep_state="awake") == 1
    llm.shutdown()


async def test_one_line_for_all_engine_cores_where_it_is_asked_for(
    tiny_model_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    args = toy_args(tiny_model_path, data_parallel_size=2, aggregate_engine_logging=True)
    llm = AsyncLLM.from_engine_args(args)
    await asyncio.gather(count(llm, "a"), count(llm, "b"))
    with caplog.at_level("INFO", logger="vllm_lite.metrics"):
        await llm.do_log_stats()
    assert [line.split(":")[0] for line in caplog.messages if "tokens/s" in line] == ["all 2 engines"]
    llm.shutdown()
