"""encode(): one vector for each prompt, and the same endings as generate()."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.frontend.fake_client import FakeClient
from tests.frontend.helpers import row, toy_args
from vllm_lite import AsyncLLM, PoolingParams, PoolingRequestOutput, SamplingParams
from vllm_lite.exceptions import EngineDeadError, EngineGenerateError, VLLMValidationError
from vllm_lite.frontend import async_llm
from vllm_lite.tracing.journey.load import load_run
from vllm_lite.wire.messages import FinishReason

VECTOR = np.array([0.6, 0.8], np.float32)


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def llm(tiny_model_path: Path, tmp_path: Path, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[AsyncLLM]:
    monkeypatch.setattr(async_llm, "make_async_mp_client", lambda *_: client)
    llm = AsyncLLM.from_engine_args(toy_args(tiny_model_path, trace_level=1, trace_dir=str(tmp_path / "run")))
    yield llm
    assert not llm.output_processor.request_states
    llm.shutdown()


@pytest.fixture
async def toy(tiny_model_path: Path) -> AsyncIterator[AsyncLLM]:
    llm = AsyncLLM.from_engine_args(toy_args(tiny_model_path))
    yield llm
    llm.shutdown()


async def vector_of(llm: AsyncLLM) -> PoolingRequestOutput:
    (output,) = [output async for output in llm.encode([1, 2], PoolingParams(), "mine")]
    return output


async def started(llm: AsyncLLM, client: FakeClient) -> asyncio.Task[PoolingRequestOutput]:
    task = asyncio.create_task(vector_of(llm))
    while not client.added:  # noqa: ASYNC110  (a send has no event)
        await asyncio.sleep(0)
    return task


def outcome(llm: AsyncLLM, folder: Path) -> tuple[str, int, int, int]:
    llm.shutdown()
    (request,) = load_run(folder / "run").requests
    assert request.accept is not None
    assert request.accept.operation == "embeddings"
    assert request.close is not None
    return request.close.outcome, request.close.puts, request.close.takes, request.close.left


async def test_one_vector_and_the_end(llm: AsyncLLM, client: FakeClient, tmp_path: Path) -> None:
    task = await started(llm, client)
    assert client.added[0].sampling_params is None
    client.put(row(client.added[0].request_id, [], pooling_output=VECTOR, finish_reason=FinishReason.STOP))
    output = await task
    assert output == PoolingRequestOutput("mine", output.outputs, [1, 2], True)
    assert output.outputs.data is VECTOR
    assert client.aborts == []
    assert outcome(llm, tmp_path) == ("finished", 1, 1, 0)


async def test_an_error_of_the_engine_core_is_raised(llm: AsyncLLM, client: FakeClient, tmp_path: Path) -> None:
    task = await started(llm, client)
    client.put(row(client.added[0].request_id, [], finish_reason=FinishReason.ERROR, error="no room"))
    with pytest.raises(EngineGenerateError, match="request 'mine' failed: no room"):
        await task
    assert outcome(llm, tmp_path) == ("error", 0, 0, 0)


async def test_an_abort_from_elsewhere_gives_an_empty_vector(llm: AsyncLLM, client: FakeClient, tmp_path: Path) -> None:
    task = await started(llm, client)
    await llm.abort("mine")
    output = await task
    assert (output.finished, output.outputs.data.shape) == (True, (0,))
    assert [reason for _, reason, _ in client.aborts] == ["api"]
    assert outcome(llm, tmp_path) == ("aborted", 1, 1, 0)


async def test_a_cancelled_caller_sends_one_abort(llm: AsyncLLM, client: FakeClient, tmp_path: Path) -> None:
    task = await started(llm, client)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [(ids, reason) for ids, reason, _ in client.aborts] == [([client.added[0].request_id], "client_disconnect")]
    assert outcome(llm, tmp_path)[0] == "aborted"


async def test_a_caller_that_leaves_early_sends_none(llm: AsyncLLM, client: FakeClient) -> None:
    stream = llm.encode([1, 2], PoolingParams(), "mine")
    await stream.aclose()
    assert client.added == client.aborts == []


async def test_a_dead_engine_sends_none(llm: AsyncLLM, client: FakeClient, tmp_path: Path) -> None:
    task = await started(llm, client)
    client.fail(EngineDeadError("gone"))
    with pytest.raises(EngineDeadError, match="gone"):
        await task
    assert client.aborts == []
    assert outcome(llm, tmp_path)[0] == "engine_dead"


async def test_whatever_else_goes_wrong_is_the_requests_own(llm: AsyncLLM, client: FakeClient) -> None:
    client.send_error = OSError("no")
    with pytest.raises(EngineGenerateError, match="request 'mine' failed: no"):
        await vector_of(llm)
    assert len(client.aborts) == 1


async def test_the_other_kind_of_parameters_is_refused(llm: AsyncLLM) -> None:
    with pytest.raises(VLLMValidationError, match="params must be PoolingParams"):
        await anext(llm.encode([1], SamplingParams(), "mine"))  # type: ignore[arg-type]
    made = llm.input_processor.process_inputs("mine", [1], PoolingParams(), supported_tasks=["embed"])
    with pytest.raises(VLLMValidationError, match="params must be SamplingParams"):
        await anext(llm.generate(made, SamplingParams(), "mine"))


async def test_a_real_engine_core(toy: AsyncLLM) -> None:
    one, two = await vector_of(toy), await vector_of(toy)
    assert abs(float((one.outputs.data**2).sum()) - 1) < 1e-5
    assert np.array_equal(one.outputs.data, two.outputs.data)
