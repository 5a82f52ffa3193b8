"""One slot: what comes while it is full is stapled, an error stays until it is taken, nothing is lost or counted twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frontend.helpers import CUMULATIVE, DELTA
from vllm_lite import RequestOutputKind, SamplingParams
from vllm_lite.frontend.collector import RequestOutputCollector
from vllm_lite.frontend.stamps import Stamps
from vllm_lite.outputs import STREAM_FINISHED, CompletionOutput, PoolingOutput, PoolingRequestOutput, RequestOutput
from vllm_lite.tracing.journey.load import load_run
from vllm_lite.tracing.journey.model import RequestJourney
from vllm_lite.tracing.records import KEPT_BACK, PUT, STAPLED
from vllm_lite.tracing.request_trace import RequestTrace
from vllm_lite.tracing.run_dir import create_run_dir


def letter(text: str, index: int = 0, *, finished: bool = False) -> RequestOutput:
    reason = "stop" if finished else None
    completion = CompletionOutput(index, text, list(text.encode()), finish_reason=reason)
    return RequestOutput("r", None, None, None, [completion], finished)


def by_index(output: object) -> dict[int, tuple[str, list[int]]]:
    assert isinstance(output, RequestOutput)
    return {completion.index: (completion.text, completion.token_ids) for completion in output.outputs}


def test_a_letter_is_taken_as_it_was_put() -> None:
    collector = RequestOutputCollector(DELTA, "r")
    output = letter("a")
    assert collector.get_nowait() is None
    assert collector.put(output) == PUT
    assert collector.get_nowait() is output
    assert collector.get_nowait() is None


def test_case_2_deltas_are_stapled_by_index() -> None:
    collector = RequestOutputCollector(DELTA, "r")
    fates = [collector.put(o) for o in (letter("a"), letter("b"), letter("c", 1), letter("d", 0, finished=True))]
    assert fates == [PUT, STAPLED, STAPLED, STAPLED]
    output = collector.get_nowait()
    assert by_index(output) == {0: ("abd", [97, 98, 100]), 1: ("c", [99])}
    assert output is not None
    assert output.finished


def test_case_2_snapshots_replace_by_index() -> None:
    collector = RequestOutputCollector(CUMULATIVE, "r")
    for output in (letter("a"), letter("ab"), letter("c", 1)):
        collector.put(output)
    assert by_index(collector.get_nowait()) == {0: ("ab", [97, 98]), 1: ("c", [99])}


def test_case_1_an_exception_replaces_and_stays() -> None:
    """S15: what lay in the slot is dropped; the trace counts it as left."""
    collector = RequestOutputCollector(DELTA, "r")
    collector.put(letter("a"))
    assert collector.put(RuntimeError("broken")) == PUT
    assert collector.put(letter("b")) == KEPT_BACK
    with pytest.raises(RuntimeError, match="broken"):
        collector.get_nowait()
    assert collector.get_nowait() is None


async def test_get_waits() -> None:
    collector = RequestOutputCollector(DELTA, "r")
    waiting = asyncio.create_task(collector.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    collector.put(letter("a"))
    collector.put(letter("b"))  # before the reader had its turn
    assert by_index(await waiting) == {0: ("ab", [97, 98])}


async def test_get_raises_what_was_put() -> None:
    collector = RequestOutputCollector(DELTA, "r")
    waiting = asyncio.create_task(collector.get())
    await asyncio.sleep(0)
    collector.put(RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        await waiting


async def test_a_cancelled_reader_loses_nothing() -> None:
    collector = RequestOutputCollector(DELTA, "r")
    waiting = asyncio.create_task(collector.get())
    await asyncio.sleep(0)
    waiting.cancel()
    collector.put(letter("a"))
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert by_index(await collector.get()) == {0: ("a", [97])}


async def test_a_mailbox_has_one_reader() -> None:
    collector = RequestOutputCollector(DELTA, "r")
    first = asyncio.create_task(collector.get())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="one mailbox has one reader"):
        await collector.get()
    collector.put(letter("a"))
    assert by_index(await first) == {0: ("a", [97])}


def test_vectors_replace_each_other() -> None:
    collector = RequestOutputCollector(RequestOutputKind.FINAL_ONLY, "r")
    old, new = (PoolingRequestOutput("r", PoolingOutput([i]), [1], finished=True) for i in (0.0, 1.0))
    collector.put(old)
    collector.put(new)
    assert collector.get_nowait() is new


# ---- counting --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def stamps() -> Stamps:
    return Stamps(create_run_dir(2), "model")


def traced(stamps: Stamps) -> tuple[RequestOutputCollector, RequestTrace]:
    trace = stamps.accept("r", SamplingParams(), None)
    assert trace is not None
    return RequestOutputCollector(DELTA, "r-1", trace, stamps), trace


def the_request(tmp_path: Path) -> RequestJourney:
    (run_dir,) = (tmp_path / "state" / "vllm-lite" / "runs").iterdir()
    (request,) = load_run(run_dir).requests
    return request


def counts(collector: RequestOutputCollector) -> tuple[int, int, int, int]:
    return collector.puts, collector.staples, collector.takes, collector.left


def test_puts_staples_and_takes_are_counted(stamps: Stamps) -> None:
    collector, trace = traced(stamps)
    for text in "abc":
        collector.put(letter(text))
    collector.get_nowait()
    collector.put(letter("d", finished=True))
    assert not trace.closed
    collector.get_nowait()
    assert (counts(collector), trace.closed) == ((4, 2, 2, 0), True)


def test_what_an_error_replaces_is_left(stamps: Stamps) -> None:
    collector, trace = traced(stamps)
    collector.put(letter("a"))
    collector.put(RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        collector.get_nowait()
    assert (counts(collector), trace.closed) == ((1, 0, 0, 1), True)


def test_what_nobody_takes_is_left(stamps: Stamps) -> None:
    collector, trace = traced(stamps)
    collector.put(letter("a"))
    collector.put(letter("b", finished=True))
    collector.close()
    assert (counts(collector), trace.closed) == ((2, 1, 0, 1), True)


def test_a_collector_that_is_forgotten_closes_its_request(stamps: Stamps, tmp_path: Path) -> None:
    collector, trace = traced(stamps)
    collector.put(letter("a"))
    del collector
    assert trace.closed
    stamps.shutdown()
    close = the_request(tmp_path).close
    assert close is not None
    assert (close.puts, close.staples, close.takes, close.left) == (1, 0, 0, 1)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["put", "take", "error"]), max_size=30))
def test_puts_equal_takes_staples_and_left(tmp_path_factory: pytest.TempPathFactory, actions: list[str]) -> None:
    stamps = Stamps(create_run_dir(2, str(tmp_path_factory.mktemp("runs") / "run")), "model")
    collector, _ = traced(stamps)
    for action in actions:
        if action == "put":
            collector.put(letter("x"))
        elif action == "error":
            collector.put(RuntimeError("broken"))
        else:
            try:
                collector.get_nowait()
            except RuntimeError:
                break
    collector.close()
    stamps.shutdown()
    assert collector.puts == collector.takes + collector.staples + collector.left
    assert collector.left <= 1 + actions.count("error")


def test_what_is_left_of_snapshots_counts_what_is_new(stamps: Stamps, tmp_path: Path) -> None:
    trace = stamps.accept("r", SamplingParams(n=2), None)
    assert trace is not None
    collector = RequestOutputCollector(CUMULATIVE, "r-1", trace, stamps)
    for outputs in (["a"], ["abc", "ab"], ["abcd"]):
        for index, text in enumerate(outputs):
            collector.put(letter(text, index))
        collector.get_nowait()
    for index, text in enumerate(["abcdef", "abc"]):
        collector.put(letter(text, index))
    collector.close()
    stamps.shutdown()
    request = the_request(tmp_path)
    assert request.close is not None
    assert (len(request.takes), request.close.left, request.close.left_tokens) == (3, 1, 3)


def test_a_farewell_is_noted_for_it_comes_in_no_bag(stamps: Stamps, tmp_path: Path) -> None:
    collector, _ = traced(stamps)
    collector.put_farewell(letter("a", finished=True))
    assert by_index(collector.get_nowait()) == {0: ("a", [97])}
    stamps.shutdown()
    request = the_request(tmp_path)
    assert [farewell.fate for farewell in request.farewells] == [PUT]
    assert [(take.tokens, take.wait >= 0) for take in request.takes] == [(0, True)]


async def test_an_end_without_a_letter(stamps: Stamps) -> None:
    """It is no letter, so nobody counts it; a letter that lies there becomes the last instead."""
    collector, trace = traced(stamps)
    reader = asyncio.create_task(collector.get())
    await asyncio.sleep(0)
    collector.finish()
    assert await reader is STREAM_FINISHED
    assert (counts(collector), trace.closed) == ((0, 0, 0, 0), True)
    collector, trace = traced(stamps)
    collector.put(letter("a"))
    collector.finish()
    last = collector.get_nowait()
    assert last is not None
    assert (last.finished, counts(collector), trace.closed) == (True, (1, 0, 1, 0), True)


@pytest.mark.parametrize("broken", [False, True])
def test_an_end_that_nobody_takes_is_no_letter_left(stamps: Stamps, broken: bool) -> None:
    collector, _ = traced(stamps)
    collector.finish()
    if broken:
        collector.put(RuntimeError("broken"))
    collector.close()
    assert counts(collector) == (0, 0, 0, 0)
    assert STREAM_FINISHED.outputs == []


def test_an_end_behind_an_error_changes_nothing() -> None:
    collector = RequestOutputCollector(DELTA, "r")
    collector.put(RuntimeError("broken"))
    collector.finish()
    with pytest.raises(RuntimeError, match="broken"):
        collector.get_nowait()
