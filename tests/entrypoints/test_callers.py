from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.console.screens import screen
from tests.entrypoints.fake_engine import FakeEngine
from vllm_lite.console.live import LiveAnswers
from vllm_lite.entrypoints.cli.callers import CLIENT_FILE, Call, Callers, Receipt, read_texts
from vllm_lite.exceptions import EngineDeadError, VLLMValidationError
from vllm_lite.frontend.protocol import EngineClient
from vllm_lite.outputs import CompletionOutput, RequestOutput
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams

PARAMS = SamplingParams(output_kind=RequestOutputKind.DELTA)
TRACEPARENT = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"


@pytest.fixture
def answers() -> Iterator[LiveAnswers]:
    with LiveAnswers(screen(80), total=9) as live:
        yield live


def calls(*ids: str, **habits: Any) -> list[Call]:
    return [Call(i, request_id, f"prompt {request_id}", PARAMS, **habits) for i, request_id in enumerate(ids)]


def callers(engine: FakeEngine, answers: LiveAnswers, folder: Path, concurrency: int = 9) -> Callers:
    return Callers(cast("EngineClient", engine), answers, folder, concurrency)


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / CLIENT_FILE).read_text(encoding="utf-8").splitlines()]


async def test_a_caller_writes_down_what_it_received(answers: LiveAnswers, tmp_path: Path) -> None:
    engine = FakeEngine({"a": ["é ", "b", "c"]}, finish_reason="stop")
    await callers(engine, answers, tmp_path).make(calls("a", traceparent=TRACEPARENT))
    assert written(tmp_path) == [
        {
            "request_id": "a",
            "prompt": "prompt a",
            "token_ids": [0, 1, 2],
            "takes": 3,
            "text": "é bc",
            "finish_reason": "stop",
            "stop_reason": ".",
            "traceparent": TRACEPARENT,
            "sampler": None,
            "kind": "finished",
            "error": None,
            "texts": ["é ", "b", "c"],
        }
    ]
    assert engine.headers == {"a": {"traceparent": TRACEPARENT}}
    assert engine.ended == {"a": "finished"}
    assert read_texts(tmp_path) == {"a": ["é ", "b", "c"]}


def test_without_a_callers_record_nothing_was_read(tmp_path: Path) -> None:
    assert read_texts(tmp_path) == {}
    (tmp_path / CLIENT_FILE).write_text('{"request_id": "a"}\n')
    assert read_texts(tmp_path) == {"a": []}


async def test_no_more_at_a_time_than_told(answers: LiveAnswers, tmp_path: Path) -> None:
    engine = FakeEngine({name: ["x"] * 5 for name in "abcdef"})
    await callers(engine, answers, tmp_path, concurrency=2).make(calls(*"abcdef"))
    assert engine.most_open == 2
    assert [line["request_id"] for line in written(tmp_path)] == list("abcdef")
    assert engine.headers["a"] is None


async def test_a_caller_that_walks_away_closes_its_stream(answers: LiveAnswers, tmp_path: Path) -> None:
    engine = FakeEngine({"a": ["x"] * 9})
    await callers(engine, answers, tmp_path).make(calls("a", leaves_after=3))
    assert engine.ended == {"a": "closed"}
    (line,) = written(tmp_path)
    assert (line["kind"], line["takes"], line["finish_reason"]) == ("aborted", 3, None)


async def test_leaving_at_the_last_letter_is_no_leaving(answers: LiveAnswers, tmp_path: Path) -> None:
    await callers(FakeEngine({"a": ["x"] * 3}), answers, tmp_path).make(calls("a", leaves_after=3))
    assert written(tmp_path)[0]["kind"] == "finished"


async def test_a_slow_reader_waits_between_letters_but_not_after_the_last(
    answers: LiveAnswers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []
    real = asyncio.sleep

    async def nap(seconds: float) -> None:
        naps.append(seconds)
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", nap)
    await callers(FakeEngine({"a": ["x"] * 3}), answers, tmp_path).make(calls("a", slow=0.25))
    assert [seconds for seconds in naps if seconds] == [0.25, 0.25]


@pytest.mark.parametrize("error", [VLLMValidationError("prompt must be shorter; got 'x'"), EngineDeadError("dead")])
async def test_one_callers_error_is_its_own(error: Exception, answers: LiveAnswers, tmp_path: Path) -> None:
    engine = FakeEngine({"a": ["x", error], "b": ["y"] * 4})
    made = callers(engine, answers, tmp_path)
    await made.make(calls("a", "b"))
    by_id = {line["request_id"]: line for line in written(tmp_path)}
    assert by_id["a"]["kind"] == "error"
    assert by_id["a"]["error"] == str(error)
    assert by_id["a"]["token_ids"] == [0]
    assert by_id["b"]["kind"] == "finished"
    assert {receipt.request_id: receipt.kind for receipt in made.receipts} == {"a": "error", "b": "finished"}


async def test_an_error_that_no_engine_raises_is_not_hidden(answers: LiveAnswers, tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup):
        await callers(FakeEngine({"a": [KeyError("bug")]}), answers, tmp_path).make(calls("a"))


async def test_cancelling_gives_every_caller_up_and_each_writes_it_down(answers: LiveAnswers, tmp_path: Path) -> None:
    engine = FakeEngine({"a": ["x"] * 10**6, "b": ["x"] * 10**6})
    task = asyncio.ensure_future(callers(engine, answers, tmp_path).make(calls("a", "b")))
    await engine.two_open.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.open == 0
    assert sorted(line["kind"] for line in written(tmp_path)) == ["aborted", "aborted"]


@pytest.mark.parametrize(
    ("reason", "stop_reason", "kind", "ending"),
    [
        ("length", None, "finished", "ended by length"),
        ("stop", "\n", "finished", "stopped at '\\n'"),
        ("stop", 7, "finished", "ended by stop"),
        ("abort", None, "aborted", "left by its caller"),
    ],
)
def test_how_a_receipt_ends(reason: str, stop_reason: str | int | None, kind: str, ending: str) -> None:
    receipt = Receipt("a", "?")
    answer = CompletionOutput(0, "", [], finish_reason=reason, stop_reason=stop_reason)
    receipt.take(RequestOutput("a", None, None, None, [answer], finished=True))
    assert (receipt.kind, receipt.ending) == (kind, ending)
