"""The clients without a loop against a real engine core: the same answers, the same errors, nothing left behind."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.frontend.core_client.conftest import children
from tests.frontend.helpers import request, toy_config
from vllm_lite.exceptions import EngineDeadError, VLLMValidationError
from vllm_lite.frontend.core_client import InprocClient, SyncEngineCoreClient, SyncMPClient, make_client
from vllm_lite.wire.messages import EngineCoreOutput


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "engine-core-client"]


@pytest.fixture
def client(tiny_model_path: Path) -> Iterator[SyncMPClient]:
    made = make_client(toy_config(tiny_model_path, step_time=0.001), multiprocess_mode=True)
    assert isinstance(made, SyncMPClient)
    yield made
    made.shutdown()
    assert children() == []
    assert threads() == []


def rows_of(client: SyncEngineCoreClient, request_id: str) -> list[EngineCoreOutput]:
    rows: list[EngineCoreOutput] = []
    while not rows or rows[-1].finish_reason is None:
        rows += [row for row in client.get_bag().outputs.outputs if row.request_id == request_id]
    return rows


def test_a_request_is_answered(client: SyncMPClient) -> None:
    assert client.add_request(request("a", max_tokens=3, ignore_eos=True)).body_size > 50
    assert [len(row.new_token_ids) for row in rows_of(client, "a")] == [1, 1, 1]


def test_an_abort_takes_effect(client: SyncMPClient) -> None:
    client.add_request(request("long", max_tokens=400, ignore_eos=True))
    client.get_bag()
    client.abort_requests(["long", "unknown"])
    client.add_request(request("next", max_tokens=2, ignore_eos=True))
    rows_of(client, "next")
    assert client.call_utility("reset_prefix_cache") is True


def test_calls(client: SyncMPClient) -> None:
    assert client.call_utility("collective_rpc", "get_info")[0]["attention_backend"] == "toy"
    with pytest.raises(RuntimeError, match="no_such_method"):
        client.call_utility("no_such_method")


def test_a_killed_core_releases_whoever_waits(client: SyncMPClient) -> None:
    client.add_request(request("a", max_tokens=400, ignore_eos=True))
    os.kill(client.ready[0].pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="was ended by SIGKILL"):
        rows_of(client, "a")
    for call in (client.get_bag, lambda: client.add_request(request("b")), lambda: client.call_utility("x")):
        with pytest.raises(EngineDeadError, match="was ended by SIGKILL"):
            call()
    client.abort_requests(["a"])


def test_after_a_shutdown_every_call_fails(client: SyncMPClient) -> None:
    client.shutdown()
    client.shutdown()
    with pytest.raises(EngineDeadError, match="was shut down"):
        client.get_bag()


def test_deleting_the_last_reference_ends_the_engine_core(tiny_model_path: Path) -> None:
    client = make_client(toy_config(tiny_model_path), multiprocess_mode=True)
    assert len(children()) == 1
    del client
    gc.collect()
    assert children() == []
    assert threads() == []


@pytest.fixture
def inproc(tiny_model_path: Path) -> Iterator[InprocClient]:
    made = make_client(toy_config(tiny_model_path), multiprocess_mode=False)
    assert isinstance(made, InprocClient)
    yield made
    made.shutdown()


def test_ready_is_this_process(inproc: InprocClient) -> None:
    (ready,) = inproc.ready
    assert (ready.pid, ready.max_model_len, ready.executor) == (os.getpid(), 512, "toy")
    assert children() == []


def test_in_this_process_a_request_is_answered_step_by_step(inproc: InprocClient) -> None:
    inproc.add_request(request("a", max_tokens=3, ignore_eos=True))
    assert [len(row.new_token_ids) for row in rows_of(inproc, "a")] == [1, 1, 1]
    assert inproc.get_bag().outputs.outputs == []


def test_an_abort_frees_its_blocks(inproc: InprocClient) -> None:
    inproc.add_request(request("a", max_tokens=100, ignore_eos=True))
    inproc.get_bag()
    assert inproc.call_utility("reset_prefix_cache") is False
    inproc.abort_requests(["a", "unknown"])
    assert inproc.call_utility("reset_prefix_cache") is True


def test_a_bad_request_is_refused_at_once(inproc: InprocClient) -> None:
    with pytest.raises(VLLMValidationError, match="prompt_token_ids"):
        inproc.add_request(request("a", [320]))


def test_a_call_that_fails_says_which(inproc: InprocClient) -> None:
    with pytest.raises(RuntimeError, match="Call to no_such_method method failed: AttributeError"):
        inproc.call_utility("no_such_method")


def test_a_bag_that_a_pause_holds_back_is_not_waited_for(inproc: InprocClient) -> None:
    inproc.call_utility("pause_scheduler")
    inproc.add_request(request("a", max_tokens=2, ignore_eos=True))
    with pytest.raises(RuntimeError, match=r"no request can go on while the engine is paused or asleep"):
        inproc.get_bag()
    inproc.call_utility("resume_scheduler")
    assert len(rows_of(inproc, "a")) == 2


def test_a_call_that_would_wait_for_steps_fails(inproc: InprocClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inproc._core, "reset_prefix_cache", Future)
    with pytest.raises(RuntimeError, match="TimeoutError"):
        inproc.call_utility("reset_prefix_cache")


def test_a_step_that_a_shutdown_breaks_tells_of_the_shutdown(
    inproc: InprocClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def schedule() -> None:  # as another thread may, while a step runs
        inproc.shutdown()
        raise KeyError

    inproc.add_request(request("a"))
    monkeypatch.setattr(inproc._core.scheduler, "schedule", schedule)
    with pytest.raises(EngineDeadError, match=r"^the engine was shut down$"):
        inproc.get_bag()
    assert "the engine core failed" not in caplog.text


def test_a_failed_step_is_the_end(inproc: InprocClient, monkeypatch: pytest.MonkeyPatch) -> None:
    inproc.add_request(request("a"))
    monkeypatch.setattr(inproc._core.scheduler, "schedule", lambda: 1 / 0)
    with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
        inproc.get_bag()
    with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
        inproc.add_request(request("b"))
    inproc.abort_requests(["a"])
    assert inproc.dead_error is not None


def test_an_engine_core_that_sends_nothing_cannot_be_traced(tiny_model_path: Path) -> None:
    with pytest.raises(VLLMValidationError, match="trace_level must be 0"):
        make_client(toy_config(tiny_model_path, trace_level=1), multiprocess_mode=False)
    with pytest.raises(VLLMValidationError, match="trace_dir must be None"):
        make_client(toy_config(tiny_model_path, trace_dir="/nowhere"), multiprocess_mode=False)


@pytest.mark.parametrize("multiprocess_mode", [False, True])
def test_several_engine_cores_need_a_loop(tiny_model_path: Path, multiprocess_mode: bool) -> None:
    config = toy_config(tiny_model_path)
    config.parallel_config.data_parallel_size = 2
    with pytest.raises(VLLMValidationError, match="data_parallel_size must be 1"):
        make_client(config, multiprocess_mode=multiprocess_mode)
