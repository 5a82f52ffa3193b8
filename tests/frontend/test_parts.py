"""Parts go whichever of them were built, from whichever thread, and only in the process that built them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.frontend.fake_client import FakeClient
from tests.frontend.helpers import request
from vllm_lite.config import ModelConfig, ObservabilityConfig
from vllm_lite.exceptions import EngineDeadError
from vllm_lite.frontend.collector import RequestOutputCollector
from vllm_lite.frontend.output_processor import OutputProcessor
from vllm_lite.frontend.parts import EngineParts
from vllm_lite.frontend.renderer import Renderer
from vllm_lite.frontend.stamps import Stamps
from vllm_lite.frontend.trace_run import TraceRun
from vllm_lite.sampling_params import RequestOutputKind


def filled() -> tuple[EngineParts, RequestOutputCollector, FakeClient]:
    parts, client = EngineParts(), FakeClient()
    parts.output_processor = OutputProcessor(None)
    collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")
    parts.output_processor.add_request(request(), None, queue=collector)
    parts.trace_run = TraceRun(ObservabilityConfig())
    parts.stamps = Stamps(parts.trace_run.path, "model")
    parts.engine_core = client
    return parts, collector, client


def check_closed(parts: EngineParts, collector: RequestOutputCollector, client: FakeClient) -> None:
    with pytest.raises(EngineDeadError, match="the engine was shut down"):
        collector.get_nowait()
    assert client.dead_error is not None
    assert parts.stamps is not None
    assert parts.stamps.level == 0
    assert parts.trace_run is not None
    assert not parts.trace_run.path.exists()


def test_nothing_was_built() -> None:
    EngineParts().close()


def test_before_there_was_a_loop() -> None:
    parts, collector, client = filled()
    parts.close()
    check_closed(parts, collector, client)


def test_after_the_loop_was_closed() -> None:
    """Even where a reader was never told: nobody can wake it any more."""
    parts, collector, client = filled()
    loop = asyncio.new_event_loop()
    reader = loop.create_task(collector.get())
    parts.handler_task = loop.create_task(asyncio.sleep(0))
    loop.run_until_complete(parts.handler_task)
    loop.close()
    parts.close()
    assert client.dead_error is not None
    assert not reader.done()
    reader._log_destroy_pending = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_while_the_loop_runs(elsewhere: bool) -> None:
    parts, collector, client = filled()
    parts.handler_task = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    if elsewhere:
        await asyncio.to_thread(parts.close)
    else:
        parts.close()
    await asyncio.gather(parts.handler_task, return_exceptions=True)
    assert parts.handler_task.cancelled()
    check_closed(parts, collector, client)


@pytest.mark.parametrize("seconds", [None, 0.0])
async def test_requests_in_flight_get_their_time(seconds: float | None) -> None:
    parts, collector, client = filled()
    parts.drain_seconds = 0.05 if seconds is None else 60.0
    parts.handler_task = asyncio.create_task(asyncio.sleep(60))
    await asyncio.to_thread(parts.close, seconds)  # whoever does not end within it is told that the engine is gone
    await asyncio.gather(parts.handler_task, return_exceptions=True)
    check_closed(parts, collector, client)


async def test_nobody_waits_once_all_requests_have_ended() -> None:
    parts, collector, client = filled()
    parts.drain_seconds = 60.0
    parts.handler_task = asyncio.create_task(asyncio.sleep(60))
    closing = asyncio.create_task(asyncio.to_thread(parts.close))
    assert parts.output_processor is not None
    await asyncio.sleep(0)
    assert client.dead_error is None
    parts.output_processor.abort_requests(["r"], internal=True)
    async with asyncio.timeout(30):
        await closing
        await asyncio.gather(parts.handler_task, return_exceptions=True)
    output = collector.get_nowait()
    assert output is not None
    assert output.finished


@pytest.mark.parametrize("broken", ["output_processor", "stamps", "renderer", "engine_core"])
def test_everything_goes_whatever_fails(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, _, client = filled()
    parts.renderer = Renderer(ModelConfig("m"), None)

    def fail(*_: object) -> None:
        raise ZeroDivisionError(broken)

    methods = {"output_processor": "propagate_error"}
    with monkeypatch.context() as patched:
        patched.setattr(getattr(parts, broken), methods.get(broken, "shutdown"), fail)
        with pytest.raises(ZeroDivisionError, match=broken):
            parts.close()
    assert (client.dead_error is None) == (broken == "engine_core")
    assert parts.trace_run is not None
    assert not parts.trace_run.path.exists()
    assert parts.stamps is not None
    assert parts.stamps._closed == (broken != "stamps")
    parts.stamps.shutdown()


def test_a_fork_of_the_owner_closes_nothing(tmp_path: Path) -> None:
    parts, collector, client = filled()
    owner, parts._owner = parts._owner, -1
    parts.close()
    assert (collector.output, client.dead_error) == (None, None)
    parts._owner = owner
    parts.close()
