"""The clerk sorts in slices, tells of stop strings, and passes on the news when there is nothing more to sort."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.frontend.fake_client import FakeClient
from tests.frontend.helpers import ids, request, row
from vllm_lite.exceptions import EngineDeadError, VLLMValidationError
from vllm_lite.frontend.collector import RequestOutputCollector
from vllm_lite.frontend.core_client import Bag, Posted
from vllm_lite.frontend.output_handler import CHUNK_SIZE, OutputHandler
from vllm_lite.frontend.output_processor import OutputProcessor, OutputProcessorOutput
from vllm_lite.frontend.stamps import Stamps
from vllm_lite.frontend.tokenizer import Tokenizer
from vllm_lite.metrics.loggers import StatLoggerManager
from vllm_lite.outputs import RequestOutput
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams
from vllm_lite.tracing.journey.load import load_run
from vllm_lite.tracing.run_dir import create_run_dir
from vllm_lite.wire.messages import EngineCoreOutput, FinishReason
from vllm_lite.wire.stats import SchedulerStats

DEAD = EngineDeadError("gone", 0)


def scripted(*bags: Sequence[EngineCoreOutput], error: Exception = DEAD) -> FakeClient:
    """A client that gives these bags, then the error."""
    client = FakeClient()
    for rows in bags:
        client.put(*rows)
    client.fail(error)
    client.error = None  # as if the core could still be told something
    return client


def add(processor: OutputProcessor, request_id: str, **params: Any) -> RequestOutputCollector:
    collector = RequestOutputCollector(RequestOutputKind.DELTA, request_id)
    processor.add_request(request(request_id, **params), None, collector)
    return collector


@pytest.fixture
def processor(tiny_tokenizer: Tokenizer) -> OutputProcessor:
    return OutputProcessor(tiny_tokenizer)


async def test_slices_of_128_with_a_turn_for_others_between(
    processor: OutputProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int | str] = []
    process = processor.process_outputs

    def noting(rows: Sequence[EngineCoreOutput], *_: Any) -> OutputProcessorOutput:
        turns.append(len(rows))
        asyncio.get_running_loop().call_soon(turns.append, "others")
        return process(rows)

    monkeypatch.setattr(processor, "process_outputs", noting)
    rows = [row(f"r{i}", ids("x")) for i in range(300)]
    await OutputHandler(scripted(rows, rows[:128]), processor, None).run()
    await asyncio.sleep(0)
    assert turns == [128, "others", 128, "others", 44, 128, "others", "others"]  # no turn after a last slice


async def test_the_size_of_a_slice_is_an_option(processor: OutputProcessor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHUNK_SIZE, "2")
    sizes: list[int] = []
    monkeypatch.setattr(processor, "process_outputs", lambda rows, *_: sizes.append(len(rows)) or OutputProcessorOutput())
    await OutputHandler(scripted([row("r", [])] * 5), processor, None).run()
    assert sizes == [2, 2, 1]


@pytest.mark.parametrize("size", ["0", "-1", "many", ""])
def test_a_size_that_is_none(processor: OutputProcessor, monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    monkeypatch.setenv(CHUNK_SIZE, size)
    with pytest.raises(VLLMValidationError, match=f"{CHUNK_SIZE} must be an integer >= 1"):
        OutputHandler(FakeClient(), processor, None)


async def test_stop_strings_are_aborted_in_the_core(processor: OutputProcessor) -> None:
    client = scripted([row("a", ids("STOP")), row("b", ids("x"))])
    add(processor, "a", stop=["STOP"])
    add(processor, "b")
    await OutputHandler(client, processor, None).run()
    assert client.aborts == [(["a"], "stop_string", {})]


async def test_a_dead_core_is_told_nothing(processor: OutputProcessor) -> None:
    client = scripted([row("a", ids("STOP"))])
    client.error = DEAD
    add(processor, "a", stop=["STOP"])
    await OutputHandler(client, processor, None).run()
    assert client.aborts == []


async def test_the_last_bag_is_sorted_before_the_news_of_the_death(
    processor: OutputProcessor, caplog: pytest.LogCaptureFixture
) -> None:
    done, cut = add(processor, "done"), add(processor, "cut")
    rows = [row("done", ids("x"), finish_reason=FinishReason.LENGTH), row("cut", ids("x"))]
    await OutputHandler(scripted(rows), processor, None).run()
    output = done.get_nowait()
    assert isinstance(output, RequestOutput)
    assert output.finished
    with pytest.raises(EngineDeadError, match="gone"):
        cut.get_nowait()
    assert "the engine is dead: gone" in caplog.text


async def test_a_fault_of_its_own_reaches_every_caller(processor: OutputProcessor, caplog: pytest.LogCaptureFixture) -> None:
    collector = add(processor, "r")
    await OutputHandler(scripted(error=ZeroDivisionError("oops")), processor, None).run()
    with pytest.raises(ZeroDivisionError, match="oops"):
        collector.get_nowait()
    assert "the output handler failed" in caplog.text


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_task_that_somebody_cancels_leaves_nobody_waiting(processor: OutputProcessor, at_once: bool) -> None:
    waiting = asyncio.create_task(add(processor, "r").get())
    task = OutputHandler(FakeClient(), processor, None).start()
    if not at_once:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(EngineDeadError, match="the task that sorts the engine's outputs was cancelled"):
        await asyncio.wait_for(waiting, 5)
    assert processor.request_states == {}


async def test_a_task_that_dies_of_more_than_an_error_leaves_nobody_waiting(processor: OutputProcessor) -> None:
    class Exit(BaseException): ...

    class Client(FakeClient):
        async def get_bag_async(self) -> Bag:
            raise Exit

    collector = add(processor, "r")
    task = OutputHandler(Client(), processor, None).start()
    with pytest.raises(Exit):
        await task
    await asyncio.sleep(0)
    with pytest.raises(EngineDeadError, match="has ended"):
        collector.get_nowait()


async def test_each_bag_is_counted_once(processor: OutputProcessor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHUNK_SIZE, "1")
    told: list[tuple[SchedulerStats | None, int | None, int]] = []

    class Manager(StatLoggerManager):
        def __init__(self) -> None: ...

        def record(self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: None = None, engine_idx: int = 0) -> None:
            told.append((scheduler_stats, iteration_stats and iteration_stats.num_generation_tokens, engine_idx))

    processor.log_stats = True
    for name in "ab":
        add(processor, name)
    client, stats = FakeClient(), SchedulerStats(num_running_reqs=3)
    client.put(scheduler_stats=stats)
    client.put(row("a", ids("xy")), row("b", ids("z")), row("gone", ids("z")), engine_index=1)
    client.fail(DEAD)
    await OutputHandler(client, processor, None, Manager()).run()
    assert told == [(stats, None, 0), (None, 3, 1)]


async def test_a_bag_is_stamped(processor: OutputProcessor) -> None:
    run_dir = create_run_dir(2)
    stamps = Stamps(run_dir, "model")
    trace = stamps.accept("mine", SamplingParams(), None)
    assert trace is not None
    made = request("a", stop=["STOP"])
    collector = RequestOutputCollector(RequestOutputKind.DELTA, "a", trace, stamps)
    processor.add_request(made, None, collector)
    stamps.post(trace, "a", t0=1, span_id="0" * 15 + "1", sample=0, posted=Posted(0, 1))
    step_trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    client = FakeClient()
    client.put(row("a", ids("x")), step_trace=step_trace)
    client.put(row("gone", [1]), row("a", ids("STOP")))
    client.fail(DEAD)
    client.error = None
    await OutputHandler(client, processor, stamps).run()
    collector.get_nowait()
    stamps.shutdown()
    run = load_run(run_dir)
    first, second = (b.sort for b in run.bags)
    assert (first.trace, first.t_received, first.t_decoded, first.body_size) == (step_trace, 10, 20, 300)
    assert (first.num_outputs, first.num_tokens, first.fates, second.fates, second.late) == (1, 1, "p", "s", [("gone", 1)])
    assert [size for _, _, size in second.slices] == [2]
    (journey,) = run.requests
    (abort,) = journey.aborts
    assert (abort.reason, abort.internal_ids) == ("stop_string", ["a"])
    assert client.aborts == [(["a"], "stop_string", {"a": f"00-{trace.trace_id}-{abort.span_id}-01"})]
    assert journey.close is not None
    close = journey.close
    assert (close.outcome, close.stop_reason, close.puts, close.staples, close.takes, close.left) == (
        "finished", "STOP", 2, 1, 1, 0,
    )  # fmt: skip
    assert (close.num_output_tokens, close.finish_reasons) == (5, ["stop"])
    assert [death.engine_index for _, death in run.deaths] == [0]
