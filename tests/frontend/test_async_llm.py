"""AsyncLLM: with a fake client where the order of things matters, with a real engine core where its life does."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.frontend.fake_client import FakeClient
from tests.frontend.helpers import CUMULATIVE, DELTA, FINAL_ONLY, ids, row, toy_args
from vllm_lite import AsyncLLM, PoolingParams, SamplingParams
from vllm_lite.exceptions import (
    EngineDeadError,
    EngineGenerateError,
    EngineStartError,
    QueueOverflowError,
    VLLMValidationError,
)
from vllm_lite.frontend import async_llm
from vllm_lite.frontend.core_client import processes
from vllm_lite.frontend.input_processor import DISABLE_RANDOM_IDS
from vllm_lite.outputs import RequestOutput
from vllm_lite.tracing.check import counts, judge
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.journey.load import load_run
from vllm_lite.tracing.log import TraceIdFilter
from vllm_lite.wire.messages import FinishReason

Maker = Callable[..., tuple[AsyncLLM, FakeClient]]
LENGTH = FinishReason.LENGTH


@pytest.fixture
def make(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Maker]:
    """Builds an AsyncLLM on a fake client."""
    made: list[AsyncLLM] = []

    def build(**options: Any) -> tuple[AsyncLLM, FakeClient]:
        client = FakeClient()
        monkeypatch.setattr(async_llm, "make_async_mp_client", lambda *_: client)
        made.append(AsyncLLM.from_engine_args(toy_args(tiny_model_path, **options)))
        return made[-1], client

    yield build
    for llm in made:
        llm.shutdown()


@pytest.fixture
async def toy(tiny_model_path: Path) -> AsyncIterator[AsyncLLM]:
    """An AsyncLLM with a real engine core; a step takes a millisecond."""
    llm = AsyncLLM.from_engine_args(toy_args(tiny_model_path, step_time=0.001))
    yield llm
    assert is_empty(llm)
    llm.shutdown()
    assert children() == []


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def params(**values: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 8, "ignore_eos": True, "output_kind": DELTA, **values})


async def collect(stream: AsyncGenerator[RequestOutput, None]) -> list[RequestOutput]:
    return [output async for output in stream]


def joined(outputs: list[RequestOutput], index: int = 0) -> tuple[str, list[int], str | None]:
    """Text, ids and finish reason of one answer of a DELTA stream."""
    parts = [part for output in outputs for part in output.outputs if part.index == index]
    return "".join(p.text for p in parts), [i for p in parts for i in p.token_ids], parts[-1].finish_reason


def is_empty(llm: AsyncLLM) -> bool:
    processor = llm.output_processor
    maps = (processor.request_states, processor.parent_requests, processor.external_req_ids)
    return not any(maps) and llm.get_num_queued_tokens() == llm.get_num_unfinished_requests() == 0


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  (these conditions have no event)
        await asyncio.sleep(0)


async def started(llm: AsyncLLM, client: FakeClient, **values: Any) -> asyncio.Task[list[RequestOutput]]:
    """A task that reads a stream whose request has been sent."""
    count = len(client.added)
    task = asyncio.create_task(collect(llm.generate([1, 2, 3], params(**values), "mine")))
    await until(lambda: len(client.added) == count + values.get("n", 1))
    return task


# ---- the way in ------------------------------------------------------------------------------------------------------------


async def test_case_4_a_request_is_registered_before_it_is_sent(make: Maker) -> None:
    llm, client = make()
    client.gate = asyncio.Event()
    task = asyncio.create_task(llm.add_request("mine", [1, 2], params()))
    await until(llm.get_num_unfinished_requests)
    assert client.added == []
    client.gate.set()
    collector = await task
    (sent,) = client.added
    assert sent.request_id == collector.request_id != "mine"
    assert (sent.external_req_id, sent.prompt_token_ids) == ("mine", [1, 2])
    await llm.abort("mine")


async def test_everything_a_caller_says_reaches_the_request(make: Maker) -> None:
    llm, client = make()
    await llm.add_request(
        "mine", "hi", params(), 2.5, session_id="s", kv_hints={"k": 1}, reasoning_ended=True, reasoning_parser_kwargs={"p": 1},
        tokenization_kwargs={"truncate_prompt_tokens": 1}, data_parallel_rank=0, prompt_text="shown",
    )  # fmt: skip
    (sent,) = client.added
    assert (sent.arrival_time, sent.session_id, sent.kv_hints, sent.data_parallel_rank) == (2.5, "s", {"k": 1}, 0)
    assert (sent.reasoning_ended, sent.reasoning_parser_kwargs, sent.prompt_token_ids) == (True, {"p": 1}, ids("i"))
    assert llm.output_processor.request_states[sent.request_id].prompt == "shown"
    await llm.abort("mine")


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("turns", range(12))
async def test_b1_a_cancelled_add_request_leaves_nothing(make: Maker, n: int, turns: int) -> None:
    """Cancelled after any number of turns of the loop, in the tokenizer's thread or at any send."""
    llm, client = make()
    add = client.add_request_async

    async def slowly(request: Any) -> Any:
        await asyncio.sleep(0)
        return await add(request)

    client.add_request_async = slowly  # type: ignore[method-assign]
    task = asyncio.create_task(llm.add_request("mine", "some text", params(n=n)))
    for _ in range(turns):
        await asyncio.sleep(0)
    if task.cancel():
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        await llm.abort("mine")
    assert is_empty(llm)
    told = {request_id for request_ids, _, _ in client.aborts for request_id in request_ids}
    assert {request.request_id for request in client.added} <= told


@pytest.mark.parametrize("n", [1, 2])
async def test_b1_cancelled_while_sending_one_abort_is_sent(make: Maker, n: int) -> None:
    llm, client = make()
    client.gate = asyncio.Event()
    task = asyncio.create_task(llm.add_request("mine", [1], params(n=n)))
    await until(llm.get_num_unfinished_requests)
    registered = list(llm.output_processor.request_states)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.aborts == [(registered, "client_disconnect", {})]
    assert is_empty(llm)


@pytest.mark.parametrize("n", [1, 3])
async def test_a_send_that_fails_leaves_nothing(make: Maker, n: int) -> None:
    llm, client = make()
    client.send_error = TypeError("cannot be encoded")
    with pytest.raises(EngineGenerateError, match="request 'mine' failed: cannot be encoded") as caught:
        await collect(llm.generate([1], params(n=n), "mine"))
    assert caught.value.__cause__ is client.send_error
    assert is_empty(llm)
    assert len(client.aborts[0][0]) == n


async def test_children_of_one_request(make: Maker) -> None:
    llm, client = make()
    task = await started(llm, client, n=3, seed=5)
    parent_id = client.added[0].request_id.split("_", 1)[1]
    assert [request.request_id for request in client.added] == [f"{i}_{parent_id}" for i in range(3)]
    assert [request.sampling_params.seed for request in client.added if request.sampling_params] == [5, 6, 7]
    assert {request.external_req_id for request in client.added} == {"mine"}
    await llm.abort("mine")
    assert (await task)[-1].finished
    assert is_empty(llm)


async def test_b5_a_duplicate_id_is_refused_and_the_first_request_lives(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISABLE_RANDOM_IDS, "1")
    llm, client = make()
    task = await started(llm, client)
    with pytest.raises(VLLMValidationError, match="request_id must be the id of no other request in flight; got 'mine'"):
        await collect(llm.generate([1], params(), "mine"))
    assert client.aborts == []
    client.put(row("mine", ids("x"), finish_reason=LENGTH))
    assert joined(await task) == ("x", ids("x"), "length")


@pytest.mark.parametrize("n", [1, 2, 3])
async def test_case_15_admission_is_all_or_nothing(make: Maker, n: int) -> None:
    llm, client = make(max_num_queued_reqs=4)
    first = await started(llm, client, n=3)
    if n == 1:
        second = await started(llm, client)
        await llm.abort("mine")
        await second
    else:
        with pytest.raises(QueueOverflowError, match=f"{n} more would exceed max_num_queued_reqs=4"):
            await collect(llm.generate([1], params(n=n), "more"))
        assert len(client.added) == llm.get_num_unfinished_requests() == 3
        await llm.abort("mine")
    assert (await first)[-1].finished


async def test_case_15_waiting_tokens_count_and_the_requests_own_do_not(make: Maker) -> None:
    llm, client = make(max_num_queued_tokens=5)
    long = await llm.add_request("long", [1] * 50, params())
    with pytest.raises(QueueOverflowError, match="50 prompt tokens wait"):
        llm.check_admission()
    client.put(row(long.request_id, ids("x")))
    await until(lambda: llm.get_num_queued_tokens() == 0)
    llm.check_admission()
    await llm.abort("long")


@pytest.mark.parametrize(
    ("prompt", "request_params", "named"),
    [
        ("", params(), "prompt"),
        ([], params(), "prompt"),
        ([320], params(), "prompt_token_ids"),
        ([1] * 512, params(), "prompt"),
        ("hi", params(logprobs=21), "logprobs"),
        ("hi", {"temperature": 0}, "params"),
        ("hi", PoolingParams(), "params"),
        ({"prompt": "hi", "multi_modal_data": {"image": 1}}, params(), "prompt"),
        (7, params(), "prompt"),
    ],
)
async def test_bad_input_is_refused_by_name(make: Maker, prompt: Any, request_params: Any, named: str) -> None:
    llm, client = make()
    with pytest.raises(VLLMValidationError) as caught:
        await collect(llm.generate(prompt, request_params, "mine"))
    assert caught.value.parameter == named
    assert is_empty(llm)
    assert client.added == client.aborts == []


async def test_an_engine_core_request_counts_as_it_is(make: Maker) -> None:
    llm, client = make(scheduling_policy="priority")
    wanted = params(n=2, max_tokens=None, seed=3)
    made = llm.input_processor.process_inputs(
        "mine", {"prompt_token_ids": [1, 2], "cache_salt": "pepper"}, wanted, arrival_time=5.0, priority=4, session_id="s"
    )
    collector = await llm.add_request("mine", made, params(max_tokens=1))
    for child in client.added:
        assert (child.external_req_id, child.prompt_token_ids, child.cache_salt) == ("mine", [1, 2], "pepper")
        assert (child.arrival_time, child.priority, child.session_id) == (5.0, 4, "s")
        assert child.sampling_params is not None
        assert child.sampling_params.max_tokens == 510
    assert len(client.added) == 2
    assert made.external_req_id is None
    await llm.abort("mine")
    assert (await collector.get()).finished


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_id", "another"),
        ("prompt_token_ids", [320]),
        ("prompt_token_ids", None),
        ("sampling_params", None),
        ("priority", 1),
        ("resumable", True),
        ("external_req_id", "mine"),
        ("pooling_params", PoolingParams()),
        ("client_index", 1),
        ("mm_features", [1]),
    ],
)
async def test_a_bad_engine_core_request_is_refused_by_name(make: Maker, field: str, value: Any) -> None:
    llm, client = make()
    made = llm.input_processor.process_inputs("mine", [1, 2], params())
    setattr(made, field, value)
    with pytest.raises(VLLMValidationError) as caught:
        await collect(llm.generate(made, params(), "mine"))
    assert caught.value.parameter == ("params" if field == "sampling_params" else field)
    assert (is_empty(llm), client.added) == (True, [])


async def test_the_background_task_runs_in_an_empty_context(make: Maker) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nobody's")
    variable.set("the first caller's")
    llm, client = make()
    seen: list[str] = []
    get = client.get_bag_async

    async def noting() -> Any:
        seen.append(variable.get())
        return await get()

    client.get_bag_async = noting  # type: ignore[method-assign]
    await until(lambda: seen)
    await llm.abort("nobody")
    assert seen == ["nobody's"]


# ---- the way out -----------------------------------------------------------------------------------------------------------


async def test_an_answer(make: Maker) -> None:
    llm, client = make()
    task = await started(llm, client)
    request_id = client.added[0].request_id
    client.put(row(request_id, ids("a")))
    client.put(row(request_id, ids("b"), finish_reason=LENGTH))
    outputs = await task
    assert joined(outputs) == ("ab", ids("ab"), "length")
    assert {output.request_id for output in outputs} == {"mine"}
    assert client.aborts == []


@pytest.mark.parametrize("internal", [True, False])
async def test_case_13_an_abort_from_elsewhere_ends_the_stream_normally(make: Maker, internal: bool) -> None:
    llm, client = make()
    task = await started(llm, client)
    request_id = client.added[0].request_id
    await llm.abort([request_id] if internal else "mine", internal=internal)
    outputs = await task
    assert (joined(outputs), outputs[-1].finished, outputs[-1].request_id) == (("", [], "abort"), True, "mine")
    await llm.abort("mine")
    assert client.aborts == [([request_id], "api", {})]


@pytest.mark.parametrize("n", [1, 2])
async def test_case_13_leaving_the_stream_sends_one_abort(make: Maker, n: int) -> None:
    llm, client = make()
    stream = llm.generate([1], params(n=n), "mine")
    asyncio.get_running_loop().call_soon(lambda: asyncio.create_task(answer_first(client)))
    async for _ in stream:
        break
    await stream.aclose()
    assert [(sorted(request_ids), reason) for request_ids, reason, _ in client.aborts] == [
        (sorted(request.request_id for request in client.added), "client_disconnect")
    ]
    assert is_empty(llm)


async def answer_first(client: FakeClient) -> None:
    await until(lambda: client.added)
    client.put(row(client.added[0].request_id, ids("x")))


async def test_case_13_a_cancelled_reader_sends_one_abort(make: Maker) -> None:
    llm, client = make()
    task = await started(llm, client)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [reason for _, reason, _ in client.aborts] == ["client_disconnect"]
    assert is_empty(llm)


async def test_case_13_a_stream_that_was_never_read_did_nothing(make: Maker) -> None:
    llm, client = make()
    stream = llm.generate([1], params(), "mine")
    await stream.aclose()
    assert (client.added, client.aborts, is_empty(llm)) == ([], [], True)


async def test_an_engines_error_is_a_finish_reason(make: Maker) -> None:
    llm, client = make()
    task = await started(llm, client)
    client.put(row(client.added[0].request_id, [], finish_reason=FinishReason.ERROR, error="bad luck"))
    (output,) = await task
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("error", "bad luck")


async def test_an_error_of_the_front_end_is_one_requests(make: Maker) -> None:
    llm, client = make()
    task, other = await started(llm, client), await started(llm, client)
    client.put(row(client.added[0].request_id, [None]))  # type: ignore[list-item]
    with pytest.raises(EngineGenerateError, match="request 'mine' failed"):
        await task
    assert client.aborts[0][0] == [client.added[0].request_id]
    client.put(row(client.added[1].request_id, ids("x"), finish_reason=LENGTH))
    assert joined(await other) == ("x", ids("x"), "length")


async def test_an_error_thrown_into_the_stream_aborts(make: Maker) -> None:
    llm, client = make()
    stream = llm.generate([1], params(), "mine")
    asyncio.get_running_loop().call_soon(lambda: asyncio.create_task(answer_first(client)))
    await anext(stream)
    with pytest.raises(EngineGenerateError, match="oops"):
        await stream.athrow(ZeroDivisionError("oops"))
    assert len(client.aborts) == 1
    assert is_empty(llm)


async def test_case_17_death_reaches_everybody_and_nothing_is_sent(make: Maker) -> None:
    llm, client = make()
    tasks = [await started(llm, client, n=n) for n in (1, 2)]
    client.fail(EngineDeadError("engine core 0 was killed", 0))
    for task in tasks:
        with pytest.raises(EngineDeadError, match="engine core 0 was killed"):
            await task
    assert client.aborts == []
    assert is_empty(llm)  # B16
    assert (llm.errored, llm.is_stopped, llm.is_running) == (True, True, False)
    with pytest.raises(EngineDeadError, match="engine core 0 was killed"):
        await collect(llm.generate([1], params(), "later"))
    await llm.abort("mine")


async def test_a_broken_client_reaches_everybody(make: Maker, caplog: pytest.LogCaptureFixture) -> None:
    llm, client = make()
    task = await started(llm, client)
    client.fail(ZeroDivisionError("oops"))
    with pytest.raises(EngineGenerateError, match="oops"):
        await task
    assert llm.errored
    assert "the output handler failed" in caplog.text
    with pytest.raises(EngineDeadError):
        await llm.add_request("later", [1], params())


@pytest.mark.parametrize("name", ["resumable", "num_tokens_before", "supported_tasks", "seed"])
async def test_what_only_the_front_end_decides_is_no_option(make: Maker, name: str) -> None:
    llm, client = make()
    with pytest.raises(VLLMValidationError, match=f"^options must be among .*; got '{name}'"):
        await collect(llm.generate([1, 2], params(), "mine", **{name: 1}))  # type: ignore[arg-type]
    assert is_empty(llm)
    assert client.added == []


async def test_shutdown_releases_those_who_wait(make: Maker) -> None:
    llm, client = make()
    task = await started(llm, client)
    llm.shutdown()
    with pytest.raises(EngineDeadError, match="was shut down"):
        await task
    llm.shutdown()
    assert llm.errored


async def test_shutdown_from_another_thread(make: Maker) -> None:
    llm, client = make()
    task = await started(llm, client)
    await asyncio.to_thread(llm.shutdown)
    with pytest.raises(EngineDeadError, match="was shut down"):
        await task


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"executor_class": object}, VLLMValidationError, "executor_class must be None, or an Executor at the top"),
        ({"executor_class": "toy"}, VLLMValidationError, "executor_class must be None, or an Executor at the top"),
        ({"executor_class": AsyncLLM}, VLLMValidationError, "distributed_executor_backend must be the module:Class of an Exec"),
        ({"mm_registry": object()}, VLLMValidationError, "mm_registry must be None"),
        ({"client_addresses": {"input_address": "x"}}, VLLMValidationError, "with output_address and trace_dir and stats_up"),
        ({"client_addresses": 5}, VLLMValidationError, "from launch_core_engines"),
        ({"client_count": 2}, VLLMValidationError, r"client_addresses must be from launch_core_engines\(\) for 2 front ends"),
        ({"client_count": 0}, VLLMValidationError, "client_count must be an integer >= 1"),
        ({"client_index": 1}, VLLMValidationError, "client_index must be an integer >= 0 and <= 0"),
    ],
)
def test_what_cannot_be_built_is_refused(
    tiny_model_path: Path, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        AsyncLLM(toy_args(tiny_model_path).create_engine_config(), **options)
    assert children() == []


def test_options_are_no_configuration(tiny_model_path: Path) -> None:
    with pytest.raises(VLLMValidationError, match=r"vllm_config must be a VllmConfig, as AsyncEngineArgs.create_engine_config"):
        AsyncLLM(toy_args(tiny_model_path))  # type: ignore[arg-type]


async def test_options_say_what_is_logged(make: Maker) -> None:
    quiet, _ = make(disable_log_stats=True)
    assert (quiet.log_stats, quiet.logger_manager, quiet.log_requests) == (False, None, False)
    loud, _ = make(enable_log_requests=True)
    assert (loud.log_stats, loud.logger_manager is None, loud.log_requests) == (True, False, True)


async def test_requests_are_logged_where_wanted(make: Maker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="vllm_lite")
    llm, client = make()
    for wanted in (False, True):
        llm.log_requests = wanted
        task = await started(llm, client)
        await llm.abort("mine")
        await task
    assert len([record for record in caplog.records if record.getMessage().endswith(" added")]) == 1


# ---- tracing ---------------------------------------------------------------------------------------------------------------

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1", "baggage": "k=v"}


def read(llm: AsyncLLM) -> Run:
    llm.shutdown()
    return load_run(Path(llm.observability_config.trace_dir or ""))


def has_records(llm: AsyncLLM) -> bool:
    """An empty run directory is taken away."""
    return Path(llm.observability_config.trace_dir or "").exists()


async def test_log_lines_of_a_traced_request_name_its_span(make: Maker, caplog: pytest.LogCaptureFixture) -> None:
    """Its own alone: what the caller logs between two outputs is the caller's, and what fails is told under its id."""
    caplog.set_level(logging.INFO, logger="vllm_lite")
    with caplog.filtering(TraceIdFilter()):
        llm, client = make(enable_log_requests=True, trace_level=1)
        headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
        left, failing = llm.generate("abc", params(), "left", trace_headers=headers), llm.generate("abc", params(), "bad")
        tasks = [asyncio.create_task(anext(left)), asyncio.create_task(anext(failing))]
        while len(client.added) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        kept, other = (one.request_id for one in sorted(client.added, key=lambda one: one.external_req_id != "left"))
        client.put(row(kept, ids("x")), row(other, ["x"]))  # type: ignore[list-item]
        await tasks[0]
        logging.getLogger("vllm_lite.caller").info("between")
        await left.aclose()
        with pytest.raises(EngineGenerateError):
            await tasks[1]
    traces = {record.getMessage(): (record.otelTraceID, record.otelTraceSampled) for record in caplog.records}  # type: ignore[attr-defined]
    named = {message: trace for message, trace in traces.items() if trace == ("a" * 32, True)}
    assert list(named) == [f"request {kept} added", "request left aborted by its caller"]
    assert traces["between"] == ("0", False)
    (trace,) = {traces[line] for line in (f"request {other} added", f"request {other} failed", "request bad failed")}
    assert trace[1]


async def test_headers_are_dropped_with_one_warning_while_tracing_is_off(make: Maker, caplog: pytest.LogCaptureFixture) -> None:
    llm, client = make()
    for _ in range(3):
        await llm.add_request("mine", [1], params(), trace_headers=SAMPLED)
    assert [request.trace_headers for request in client.added] == [None] * 3
    assert caplog.text.count("tracing is off") == 1
    await llm.abort("mine")


async def test_a_sampled_request_is_posted_as_the_parent_of_the_cores_span(make: Maker) -> None:
    llm, client = make(trace_level=1)
    collector = await llm.add_request("mine", "hi", params(n=2), trace_headers=SAMPLED)
    await llm.abort("mine")
    assert collector.output is not None
    (request,) = read(llm).requests
    assert (request.accept.trace_id, request.accept.parent_span_id) == (TRACE, SPAN)
    assert [part.num_prompt_tokens for part in request.tokenised] == [2]
    assert [post.sample for post in request.posts] == [0, 1]
    for sent, post in zip(client.added, request.posts, strict=True):
        assert sent.request_id == post.internal_id
        assert sent.trace_headers == {**SAMPLED, "traceparent": f"00-{TRACE}-{post.span_id}-01"}
    (abort,) = request.aborts
    assert client.aborts[0][2] == dict.fromkeys(abort.internal_ids, f"00-{TRACE}-{abort.span_id}-01")


@pytest.mark.parametrize("sampler", ["parentbased_always_on", "always_off"])
async def test_an_unsampled_request_passes_its_headers_on(make: Maker, monkeypatch: pytest.MonkeyPatch, sampler: str) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    llm, client = make(trace_level=2)
    flagless = {**SAMPLED, "traceparent": f"00-{TRACE}-{SPAN}-00"}
    await llm.add_request("mine", [1], params(), trace_headers=flagless if sampler.startswith("parent") else SAMPLED)
    assert client.added[0].trace_headers == flagless
    await llm.abort("mine")
    llm.shutdown()
    if sampler == "always_off":
        assert not has_records(llm)
    else:  # the engine's own life is recorded
        assert read(llm).requests == []


@pytest.mark.parametrize("headers", [{"traceparent": 5}, {1: "x"}, "traceparent"])
async def test_headers_that_are_none(make: Maker, headers: Any) -> None:
    llm, _ = make()
    with pytest.raises(VLLMValidationError, match="trace_headers must be a mapping"):
        await llm.add_request("mine", [1], params(), trace_headers=headers)


async def test_case_25_every_ending_closes_its_request_once(make: Maker) -> None:
    llm, client = make(trace_level=3, max_num_queued_reqs=7)

    async def ask(name: str, prompt: Any = (1, 2), **values: Any) -> asyncio.Task[list[RequestOutput]]:
        """Start to read the stream `name`; comes back when it was sent, or refused."""
        count = len(client.added)
        task = asyncio.create_task(collect(llm.generate(list(prompt), params(**values), name)))
        await until(lambda: task.done() or len(client.added) >= count + values.get("n", 1))
        return task

    def answer(text: str, **fields: Any) -> None:
        client.put(row(client.added[-1].request_id, ids(text), **fields))

    tasks = [await ask("finished")]
    answer("abc", finish_reason=LENGTH)
    tasks.append(await ask("stop-string", stop=["STOP"]))
    answer("aSTOP")
    tasks.append(await ask("error"))
    answer("", finish_reason=FinishReason.ERROR, error="bad luck")
    for name, n in (("aborted", 1), ("several", 2)):
        tasks.append(await ask(name, n=n))
        await llm.abort(name)
    tasks.append(await ask("left"))
    tasks[-1].cancel()
    tasks.append(await ask("invalid", prompt=()))
    tasks.append(await ask("rejected", n=8))
    await asyncio.gather(*tasks, return_exceptions=True)
    client.gate = asyncio.Event()
    sending = asyncio.create_task(llm.add_request("cancelled", [1], params()))
    await until(llm.get_num_unfinished_requests)
    sending.cancel()
    client.gate, client.send_error = None, TypeError("unsendable")
    tasks = [await ask("unsendable")]
    client.send_error = None
    tasks.append(await ask("doomed"))
    answer("x")
    await until(lambda: llm.get_num_queued_tokens() == 0)
    client.fail(EngineDeadError("gone", 0))
    await asyncio.gather(sending, *tasks, return_exceptions=True)
    await asyncio.gather(await ask("too late"), return_exceptions=True)
    run = read(llm)
    closes = [(request.accept.external_id, request.close) for request in run.requests if request.close is not None]
    assert {name: (close.outcome, close.finish_reasons, close.error_type) for name, close in closes} == {
        "finished": ("finished", ["length"], None),
        "stop-string": ("finished", ["stop"], None),
        "error": ("error", ["error"], "EngineGenerateError"),
        "aborted": ("aborted", ["abort"], None),
        "several": ("aborted", ["abort", "abort"], None),
        "left": ("aborted", ["abort"], None),
        "invalid": ("invalid", [], "VLLMValidationError"),
        "rejected": ("rejected", [], "QueueOverflowError"),
        "cancelled": ("aborted", ["abort"], None),
        "unsendable": ("error", ["abort"], "TypeError"),
        "doomed": ("engine_dead", [], "engine_dead"),
        "too late": ("engine_dead", [], "engine_dead"),
    }
    assert len(closes) == len(run.requests) == 12
    assert judge("letters add up", counts.letters(run)).failures == []
    assert [death.engine_index for _, death in run.deaths] == [0]
    assert {
        request.accept.external_id: [abort.reason for abort in request.aborts] for request in run.requests if request.aborts
    } == {
        "stop-string": ["stop_string"],
        "aborted": ["api"],
        "several": ["api"],
        "left": ["client_disconnect"],
    }


# ---- a real engine core ----------------------------------------------------------------------------------------------------


async def test_all_kinds_of_output_agree(toy: AsyncLLM) -> None:
    prompt = [{"role": "user", "content": "hi"}]
    deltas = await collect(toy.generate(prompt, params(max_tokens=20), "d"))
    snapshots = await collect(toy.generate(prompt, params(max_tokens=20, output_kind=CUMULATIVE), "c"))
    (final,) = await collect(toy.generate(prompt, params(max_tokens=20, output_kind=FINAL_ONLY), "f"))
    text, token_ids, reason = joined(deltas)
    assert (final.outputs[0].text, final.outputs[0].token_ids, final.outputs[0].finish_reason) == (text, token_ids, reason)
    assert (snapshots[-1].outputs[0].text, snapshots[-1].outputs[0].token_ids) == (text, token_ids)
    assert (len(token_ids), reason, text) == (20, "length", toy.get_tokenizer().decode(token_ids))
    assert final.prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


async def test_a_stop_string_ends_the_answer_and_frees_the_engine(toy: AsyncLLM) -> None:
    text, token_ids, _ = joined(await collect(toy.generate("p", params(max_tokens=30), "all")))
    stop = text[10:13]
    cut_text, cut_ids, reason = joined(await collect(toy.generate("p", params(max_tokens=400, stop=stop), "cut")))
    assert (cut_text, reason) == (text[: text.index(stop)], "stop")
    assert token_ids[: len(cut_ids)] == cut_ids
    assert await toy.reset_prefix_cache()


async def test_several_answers(toy: AsyncLLM) -> None:
    outputs = await collect(toy.generate("p", params(n=3, temperature=1.0, seed=1, max_tokens=5), "n"))
    assert [output.finished for output in outputs].count(True) == 1
    assert outputs[-1].finished
    assert [len(joined(outputs, index)[1]) for index in range(3)] == [5, 5, 5]
    (final,) = await collect(toy.generate("p", params(n=3, temperature=1.0, seed=1, max_tokens=5, output_kind=FINAL_ONLY), "n"))
    assert [c.token_ids for c in final.outputs] == [joined(outputs, index)[1] for index in range(3)]


async def test_b6_one_id_used_again_and_again(toy: AsyncLLM) -> None:
    answers = [joined(await collect(toy.generate("p", params(max_tokens=2), "same"))) for _ in range(200)]
    assert len(set(map(str, answers))) == 1


async def test_a_bad_request_disturbs_nobody(toy: AsyncLLM) -> None:
    expected = joined(await collect(toy.generate("p", params(max_tokens=50), "alone")))
    good = asyncio.create_task(collect(toy.generate("p", params(max_tokens=50), "good")))
    for prompt, values in (("", {}), ([999], {}), ("p", {"logprobs": 999}), ("p", {"stop_token_ids": [999]})):
        with pytest.raises(VLLMValidationError):
            await collect(toy.generate(prompt, params(**values), "bad"))
    assert joined(await good) == expected
    await toy.check_health()


async def test_s4_a_slow_reader_loses_nothing(toy: AsyncLLM) -> None:
    expected = joined(await collect(toy.generate("p", params(max_tokens=40), "fast")))
    outputs = []
    async for output in toy.generate("p", params(max_tokens=40), "slow"):
        outputs.append(output)
        await until(lambda: toy.get_num_unfinished_requests() == 0)
    assert joined(outputs) == expected
    assert len(outputs) == 2  # all that came meanwhile was stapled


async def test_many_requests_in_every_way_at_once(toy: AsyncLLM) -> None:
    rng = random.Random(1)
    expected = {i: joined(await collect(toy.generate(f"p{i}", params(max_tokens=30), "alone"))) for i in range(8)}

    async def one(number: int) -> None:
        prompt, way = number % 8, rng.choice(["whole", "break", "cancel", "abort", "slow"])
        name, outputs = f"{way}-{number}", []
        cancel_at = rng.randrange(1, 20)
        async for output in toy.generate(f"p{prompt}", params(max_tokens=30), name):
            outputs.append(output)
            if len(outputs) >= cancel_at and way == "break":
                break
            if len(outputs) >= cancel_at and way == "cancel":
                raise asyncio.CancelledError
            if len(outputs) == cancel_at and way == "abort":
                await toy.abort(name)
            if way == "slow":
                await toy.is_sleeping()  # steps go on until the answer comes
        text, token_ids, reason = joined(outputs)
        assert expected[prompt][1][: len(token_ids)] == token_ids
        assert expected[prompt][0].startswith(text)
        if way in ("whole", "slow"):
            assert (text, token_ids, reason) == expected[prompt]
            assert [o.outputs[0].finish_reason for o in outputs if o.outputs[0].finish_reason] == ["length"]

    results = await asyncio.gather(*[one(number) for number in range(150)], return_exceptions=True)
    assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
    gc.collect()
    await until(lambda: is_empty(toy))
    while not await toy.reset_prefix_cache():  # noqa: ASYNC110  (until the core holds no block any more)
        await asyncio.sleep(0)


async def test_case_17_sigkill_releases_everybody_at_once(tiny_model_path: Path) -> None:
    llm = AsyncLLM.from_engine_args(toy_args(tiny_model_path, step_time=0.002))
    streams = [asyncio.create_task(collect(llm.generate("p", params(max_tokens=400), f"r{i}"))) for i in range(4)]
    await until(lambda: llm.get_num_unfinished_requests() == 4 and llm.get_num_queued_tokens() == 0)
    os.kill(children()[0].pid, signal.SIGKILL)
    loop = asyncio.get_running_loop()
    killed = loop.time()
    for stream in streams:
        with pytest.raises(EngineDeadError, match="was ended by SIGKILL"):
            await stream
    assert loop.time() - killed < 1
    assert (is_empty(llm), llm.errored) == (True, True)
    for later in (llm.check_health(), llm.collective_rpc("get_info"), llm.add_request("x", [1], params())):
        with pytest.raises(EngineDeadError, match="was ended by SIGKILL"):
            await later
    await llm.abort("r0")
    llm.shutdown()
    assert children() == []


def test_a_start_that_fails_leaves_nothing(tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "ENGINE_CORE_MODULE", "no.such.module")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fds = len(os.listdir("/proc/self/fd"))
    with pytest.raises(EngineStartError, match="ended with exit code 1"):
        AsyncLLM.from_engine_args(toy_args(tiny_model_path))
    assert children() == []
    assert list(tmp_path.glob("vllm-lite-*")) == []
    assert list((tmp_path / "state" / "vllm-lite" / "runs").iterdir()) == []
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == fds


async def test_deleting_the_last_reference_ends_the_engine(tiny_model_path: Path) -> None:
    llm = AsyncLLM.from_engine_args(toy_args(tiny_model_path))
    await collect(llm.generate("p", params(), "r"))
    assert len(children()) == 1
    del llm
    assert children() == []
    await asyncio.sleep(0)


def test_an_engine_built_before_there_is_a_loop(tiny_model_path: Path) -> None:
    llm = AsyncLLM.from_engine_args(toy_args(tiny_model_path))
    assert llm._parts.handler_task is None
    assert not llm.errored
    text, _, _ = joined(asyncio.run(collect(llm.generate("p", params(), "r"))))
    assert len(text) > 0
    assert llm.errored  # its loop is gone
    llm.shutdown()
    assert children() == []


def test_two_engines_in_one_process(tiny_model_path: Path) -> None:
    async def use() -> None:
        config = toy_args(tiny_model_path).create_engine_config()
        first, second = AsyncLLM.from_vllm_config(config), AsyncLLM.from_vllm_config(config)
        answers = await asyncio.gather(*[collect(llm.generate("p", params(), "r")) for llm in (first, second)])
        assert joined(answers[0]) == joined(answers[1])
        assert config.observability_config.trace_dir is None  # each made its own, and left the caller's value alone
        first.shutdown()
        assert joined(await collect(second.generate("p", params(), "r"))) == joined(answers[0])
        second.shutdown()

    asyncio.run(use())
    assert children() == []


CHAT = """
import asyncio, sys
from vllm_lite import AsyncEngineArgs, AsyncLLM, SamplingParams
async def main():
    args = AsyncEngineArgs(model=sys.argv[1], distributed_executor_backend="toy", max_model_len=512)
    llm = AsyncLLM.from_engine_args(args)
    async for output in llm.generate([{"role": "user", "content": "hi"}], SamplingParams(max_tokens=4), "r"):
        pass
    llm.shutdown()
    assert output.finished
asyncio.run(main())
print(sorted({name.split(".")[0] for name in sys.modules} & {"torch", "transformers", "opentelemetry", "grpc", "rich"}))
"""


def test_the_front_end_imports_nothing_heavy(tiny_model_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CHAT, str(tiny_model_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
