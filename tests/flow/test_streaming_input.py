"""Sessions across real processes: their trace holds together, their parts stay on one engine core, and no token changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from tests.flow.conftest import MakeEngine, engine_processes
from tests.frontend.test_streaming_input import Parts
from vllm_lite import AsyncLLM, EngineDeadError, RequestOutputKind, SamplingParams, StreamingInput
from vllm_lite.engine_core.executor.toy import expected_tokens
from vllm_lite.tracing.check import check_run
from vllm_lite.tracing.journey import RequestJourney
from vllm_lite.tracing.journey.load import load_run
from vllm_lite.tracing.spans.request import request_spans

PARTS = [list(b"Tell me about the sea. "), list(b"And the land?"), list(b" Thank you.")]


def params(kind: RequestOutputKind = RequestOutputKind.DELTA) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, output_kind=kind)


async def parts(error: Exception | None = None) -> Parts:
    for part in PARTS:
        yield StreamingInput(part)
        await asyncio.sleep(0)
    if error is not None:
        raise error


async def answers(engine: AsyncLLM, name: str = "session", pause: float = 0.0) -> list[int]:
    """All tokens of a session; `pause` makes its reader slow."""
    tokens: list[int] = []
    async for output in engine.generate(parts(), params(), name):
        tokens += output.outputs[0].token_ids
        await asyncio.sleep(pause)
    return tokens


async def leave(engine: AsyncLLM, name: str, after: int) -> None:
    stream = engine.generate(parts(), params(RequestOutputKind.CUMULATIVE), name)
    async for _ in stream:
        after -= 1
        if not after:
            break
    await stream.aclose()


async def fail(engine: AsyncLLM, name: str) -> None:
    with pytest.raises(ZeroDivisionError):
        [output async for output in engine.generate(parts(ZeroDivisionError()), params(), name)]


async def given_up_by_a_pause(engine: AsyncLLM) -> str | None:
    """The last finish reason of a session that the engine core gives up between two parts."""

    async def one_part() -> Parts:
        yield StreamingInput(PARTS[0])
        await asyncio.Event().wait()

    reason = None
    async for output in engine.generate(one_part(), params(), "paused"):
        reason = output.outputs[0].finish_reason
        if reason == "length":
            await engine.pause_generation()
    await engine.resume_generation()
    return reason


def plain() -> list[int]:
    """What plain requests over the same tokens give."""
    told, tokens = list[int](), list[int]()
    for part in PARTS:
        told += part
        answer = expected_tokens(told, 6)
        tokens += answer
        told += answer[:-1]
    return tokens


@pytest.mark.parametrize("level", [1, 2, 3])
async def test_the_records_of_sessions_hold_together(make_engine: MakeEngine, tmp_path: Path, level: int) -> None:
    engine = make_engine(trace_level=level, trace_dir=str(tmp_path / "run"))
    taken = await asyncio.gather(
        *(answers(engine, f"slow {i}", 0.002) for i in range(2)),
        *(answers(engine, f"quick {i}") for i in range(2)),
    )
    await asyncio.gather(*(leave(engine, f"leaver {i}", i) for i in (1, 7, 12)), fail(engine, "broken"))
    assert await given_up_by_a_pause(engine) == "abort"
    engine.shutdown()
    assert taken == [plain()] * 4
    run = load_run(tmp_path / "run")
    assert [failure for finding in check_run(run) for failure in finding.failures] == []
    requests = {request.accept.external_id: request for request in run.requests}
    assert len(requests) == 9
    whole = requests["quick 0"]
    assert whole.close is not None
    assert (whole.close.outcome, whole.close.num_output_tokens) == ("finished", 18)
    assert whole.close.num_prompt_tokens == sum(map(len, PARTS))
    assert one_root_with_three_stays(whole)
    left, broken = requests["leaver 1"].close, requests["broken"].close
    assert left is not None
    assert broken is not None
    assert (left.outcome, broken.outcome, broken.error_type) == ("aborted", "error", "ZeroDivisionError")


def one_root_with_three_stays(request: RequestJourney) -> bool:
    """Each part was sent, received, scheduled and answered, below one request span."""
    spans = request_spans(request)
    names = [span.name for span in spans]
    stays = [span for span in spans if span.name == "process engine_core.inputs"]
    parents = {span.span_id: span.name for span in spans}
    return (
        [span.parent_span_id for span in spans].count(None) == 1
        and names.count("input_processor.process_inputs")
        == names.count("send engine_core.inputs")
        == len(stays)
        == len(request.internal_ids) * 3
        and {parents[span.parent_span_id or ""] for span in stays} == {"send engine_core.inputs"}
        and all(stay.finish_reason == "length" and stay.spells[0].steps for stay in request.stays)
    )


async def test_all_parts_go_to_one_engine_core(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine(data_parallel_size=2, trace_level=1, trace_dir=str(tmp_path / "run"))
    assert await asyncio.gather(*(answers(engine, str(i)) for i in range(6))) == [plain()] * 6
    await engine.pause_generation()
    await engine.release_kv_cache_memory()  # refused while a core holds any request
    assert engine.engine_core.balancer.reqs_in_flight == {}  # type: ignore[attr-defined]
    engine.shutdown()
    run = load_run(tmp_path / "run")
    places = [{post.engine_index for post in request.posts} for request in run.requests]
    assert sorted(map(len, places)) == [1] * 6
    assert set().union(*places) == {0, 1}


async def test_a_session_whose_engine_core_is_killed(make_engine: MakeEngine) -> None:
    engine = make_engine()
    waiting = asyncio.Event()

    async def one() -> Parts:
        yield StreamingInput(PARTS[0])
        waiting.set()
        await asyncio.Event().wait()

    stream = engine.generate(one(), params(), "session")
    async for output in stream:
        if output.outputs[0].finish_reason is not None:
            break
    await waiting.wait()
    for process in engine_processes():
        psutil.Process(process.pid).kill()
    with pytest.raises(EngineDeadError):
        await anext(stream)


async def test_a_real_model_answers_as_it_answers_plain_requests(make_engine: MakeEngine) -> None:
    engine = make_engine(distributed_executor_backend="uni", dtype="float64", block_size=4)
    session = await answers(engine)
    told: list[int] = []
    for number, part in enumerate(PARTS):
        told += part
        *_, last = [o async for o in engine.generate(told, params(RequestOutputKind.CUMULATIVE), f"plain {number}")]
        answer = last.outputs[0].token_ids
        assert session[number * 6 : number * 6 + 6] == answer
        told += answer[:-1]
