"""Several real engine cores with the toy executor behind one front end; then the choice among engine cores alone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.frontend.core_client.conftest import children
from tests.frontend.helpers import FINAL_ONLY, request, row, stop, toy_config
from vllm_lite import AsyncLLM, SamplingParams, VllmConfig
from vllm_lite.exceptions import EngineDeadError, VLLMValidationError
from vllm_lite.frontend.core_client import DPAsyncMPClient, DPLBAsyncMPClient, make_async_mp_client
from vllm_lite.frontend.core_client.dp_clients import LoadBalancer
from vllm_lite.wire.messages import EngineCoreOutputs, FinishReason
from vllm_lite.wire.stats import SchedulerStats


def config(model: Path, size: int, **parallel: Any) -> VllmConfig:
    made = toy_config(model, step_time=0.001)
    made.parallel_config.data_parallel_size = size
    for name, value in parallel.items():
        setattr(made.parallel_config, name, value)
    return made


@pytest.fixture
async def llm(tiny_model_path: Path) -> AsyncIterator[AsyncLLM]:
    made = AsyncLLM.from_vllm_config(config(tiny_model_path, 2))
    yield made
    made.shutdown()
    assert children() == []


def client_of(llm: AsyncLLM) -> DPLBAsyncMPClient:
    assert isinstance(llm.engine_core, DPLBAsyncMPClient)
    return llm.engine_core


async def answer(llm: AsyncLLM, i: int, **options: Any) -> list[int]:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, output_kind=FINAL_ONLY)
    (output,) = [output async for output in llm.generate([i % 7, 2, 3], params, str(i), **options)]
    return output.outputs[0].token_ids


async def test_requests_are_spread_and_answers_are_those_of_one_engine(llm: AsyncLLM, tiny_model_path: Path) -> None:
    alone = AsyncLLM.from_vllm_config(toy_config(tiny_model_path))
    expected = [await answer(alone, i) for i in range(12)]
    alone.shutdown()
    sent: Counter[int] = Counter()
    choose = client_of(llm).balancer.choose

    def noting(*args: Any) -> int:
        index = choose(*args)
        sent[index] += 1
        return index

    client_of(llm).balancer.choose = noting  # type: ignore[method-assign]
    assert await asyncio.gather(*(answer(llm, i) for i in range(12))) == expected
    assert sent == {0: 6, 1: 6}
    assert client_of(llm).balancer.reqs_in_flight == {}
    assert llm.vllm_config.cache_config.num_gpu_blocks == sum(ready.num_gpu_blocks for ready in client_of(llm).ready)
    assert llm.logger_manager is not None
    registry = llm.logger_manager.prometheus.registry
    labels = {"model_name": llm.model_config.model, "engine": "1"}
    assert registry.get_sample_value("vllm:generation_tokens_total", labels) == 48


async def test_a_rank_can_be_asked_for(llm: AsyncLLM) -> None:
    task = asyncio.create_task(answer(llm, 1, data_parallel_rank=1))
    while not client_of(llm).balancer.reqs_in_flight:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert list(client_of(llm).balancer.reqs_in_flight.values()) == [1]
    await task
    with pytest.raises(VLLMValidationError, match="data_parallel_rank"):
        await answer(llm, 1, data_parallel_rank=2)


async def test_an_abort_goes_to_the_engine_core_that_has_the_request(llm: AsyncLLM) -> None:
    client = client_of(llm)
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    streams = [llm.generate([1, 2, 3], params, str(i)) for i in range(4)]
    for stream in streams:
        await anext(stream)
    assert sorted(client.balancer.reqs_in_flight.values()) == [0, 0, 1, 1]
    await llm.abort(["0", "1", "2", "3", "unknown"])
    assert client.balancer.reqs_in_flight == {}
    for stream in streams:
        await stream.aclose()
    assert await llm.reset_prefix_cache() is True  # so no engine core holds a block


async def test_calls_reach_every_engine_core(llm: AsyncLLM) -> None:
    assert len(await llm.collective_rpc("get_info")) == 2
    await llm.pause_generation()
    assert await llm.is_paused() is True
    await llm.resume_generation()
    await client_of(llm)._call(1, "pause_scheduler", ("abort", True))
    with pytest.raises(RuntimeError, match="the engine cores disagree about is_scheduler_paused"):
        await llm.is_paused()
    await llm.resume_generation()


async def test_one_that_is_stuck_is_found_out(llm: AsyncLLM) -> None:
    pid = client_of(llm).ready[1].pid
    stop(pid)
    with pytest.raises(EngineDeadError, match="engine core 1 has not answered"):
        await llm.check_health(0.2)
    os.kill(pid, signal.SIGCONT)
    await llm.check_health()


async def test_the_death_of_one_is_the_death_of_all(llm: AsyncLLM) -> None:
    tasks = [asyncio.create_task(answer(llm, i)) for i in range(4)]
    while len(client_of(llm).balancer.reqs_in_flight) < 4:  # noqa: ASYNC110
        await asyncio.sleep(0)
    os.kill(client_of(llm).ready[1].pid, signal.SIGKILL)
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
    assert any(isinstance(result, EngineDeadError) for result in results)
    with pytest.raises(EngineDeadError, match="engine core 1"):
        await answer(llm, 9)


async def test_the_one_that_failed_is_named(tiny_model_path: Path) -> None:
    crashing = config(tiny_model_path, 2)
    crashing.additional_config["toy_crash_at_step"] = 3
    llm = AsyncLLM.from_vllm_config(crashing)
    with pytest.raises(EngineDeadError, match="engine core 1"):
        await answer(llm, 0, data_parallel_rank=1)
    assert client_of(llm).dead_error is not None
    assert client_of(llm).dead_error.engine_index == 1
    llm.shutdown()


async def test_a_request_that_cannot_be_sent_is_not_in_flight(llm: AsyncLLM) -> None:
    bad = request("bad")
    bad.reasoning_parser_kwargs = {"x": object()}
    with pytest.raises(TypeError, match="cannot be encoded"):
        await client_of(llm).add_request_async(bad)
    assert client_of(llm).balancer.reqs_in_flight == {}


async def test_one_rank_behind_a_balancer_elsewhere(tiny_model_path: Path) -> None:
    client = make_async_mp_client(config(tiny_model_path, 3, data_parallel_rank=2, data_parallel_external_lb=True))
    assert isinstance(client, DPAsyncMPClient)
    assert [ready.engine_index for ready in client.ready] == [2]
    posted = await client.add_request_async(request("a", max_tokens=2, ignore_eos=True))
    assert posted.engine_index == 2
    assert (await client.get_bag_async()).outputs.engine_index == 2
    await client.ping_async(5)
    elsewhere = request("b")
    elsewhere.data_parallel_rank = 1
    with pytest.raises(VLLMValidationError, match="data_parallel_rank must be 2"):
        await client.add_request_async(elsewhere)
    client.shutdown()
    assert children() == []


def say(balancer: LoadBalancer, index: int, *, waiting: int = 0, running: int = 0, usage: float = 0.0) -> None:
    balancer.observe(EngineCoreOutputs(index, scheduler_stats=SchedulerStats(running, waiting, usage)))


def test_equal_loads_take_turns() -> None:
    balancer = LoadBalancer(3)
    assert [balancer.choose(f"r{i}") for i in range(6)] == [0, 1, 2, 0, 1, 2]


def test_x7_a_burst_is_spread_although_what_was_said_is_stale() -> None:
    balancer = LoadBalancer(3)
    chosen = []
    for i in range(6):
        chosen.append(balancer.choose(f"r{i}"))
        for index in range(3):
            say(balancer, index)  # nothing has arrived there yet
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_of_several_front_ends_each_begins_elsewhere_and_takes_the_others_to_send_as_much() -> None:
    balancers = [LoadBalancer(4, 2, index) for index in range(2)]
    assert [balancer.choose("r") for balancer in balancers] == [0, 2]
    say(balancers[0], 0)
    for index in (1, 2, 3):
        say(balancers[0], index, running=1)
    assert balancers[0].choose("s") == 1  # one sent to 0 here, so two in all
    say(balancers[0], 0, running=9)  # what was sent elsewhere
    assert balancers[0].choose("t") == 2


@pytest.mark.parametrize(("usage", "expected"), [(0.9, 1), (0.5, 0)])
def test_waiting_weighs_more_where_the_cache_is_full(usage: float, expected: int) -> None:
    balancer = LoadBalancer(2)
    say(balancer, 0, waiting=2, running=8, usage=usage)
    say(balancer, 1, running=12)
    assert balancer.choose("r") == expected


def test_a_rank_that_was_asked_for_and_one_that_has_the_request() -> None:
    balancer = LoadBalancer(3)
    assert balancer.choose("r", 2) == 2
    assert balancer.choose("r") == 2  # as a further piece of the same request
    assert balancer.reqs_in_flight == {"r": 2}


def test_an_end_frees_its_place_once() -> None:
    balancer = LoadBalancer(2)
    for name in "abc":
        balancer.choose(name)
    part = row("c", [1], finish_reason=FinishReason.STOP)  # of a session, which stays where it is
    balancer.observe(EngineCoreOutputs(0, [part, row("gone", [])], finished_requests={"a", "gone"}))
    assert balancer.reqs_in_flight == {"b": 1, "c": 0}
    assert balancer.by_engine(["b", "c", "a", "unknown"]) == {1: ["b"], 0: ["c"]}
    assert balancer.forget("b") is None
    assert [load.in_flight for load in balancer._loads] == [0, 0]


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
def test_an_end_outside_a_step_has_only_its_row(reason: FinishReason) -> None:
    balancer = LoadBalancer(1)
    balancer.choose("a")
    balancer.observe(EngineCoreOutputs(0, [row("a", [], finish_reason=reason)]))
    assert balancer.reqs_in_flight == {}
