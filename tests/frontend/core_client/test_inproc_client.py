"""The engine core in this process, with the toy executor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.frontend.core_client.conftest import children
from tests.frontend.core_client.test_sync_mp_client import rows_of
from tests.frontend.helpers import request, toy_config
from vllm_lite.exceptions import EngineDeadError, VLLMValidationError
from vllm_lite.frontend.core_client import InprocClient, make_client


@pytest.fixture
def client(tiny_model_path: Path) -> Iterator[InprocClient]:
    made = make_client(toy_config(tiny_model_path), multiprocess_mode=False)
    assert isinstance(made, InprocClient)
    yield made
    made.shutdown()


def test_ready_is_this_process(client: InprocClient) -> None:
    (ready,) = client.ready
    assert (ready.pid, ready.max_model_len, ready.executor) == (os.getpid(), 512, "toy")
    assert children() == []


def test_a_request_is_answered_step_by_step(client: InprocClient) -> None:
    client.add_request(request("a", max_tokens=3, ignore_eos=True))
    assert [len(row.new_token_ids) for row in rows_of(client, "a")] == [1, 1, 1]
    assert client.get_output().outputs == []


def test_an_abort_frees_its_blocks(client: InprocClient) -> None:
    client.add_request(request("a", max_tokens=100, ignore_eos=True))
    client.get_bag()
    assert client.call_utility("reset_prefix_cache") is False
    client.abort_requests(["a", "unknown"])
    assert client.call_utility("reset_prefix_cache") is True


def test_a_bad_request_is_refused_at_once(client: InprocClient) -> None:
    with pytest.raises(VLLMValidationError, match="prompt_token_ids"):
        client.add_request(request("a", [320]))


def test_a_call_that_fails_says_which(client: InprocClient) -> None:
    with pytest.raises(RuntimeError, match="Call to no_such_method method failed: AttributeError"):
        client.call_utility("no_such_method")


def test_a_call_that_would_wait_for_steps_fails(client: InprocClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client._core, "reset_prefix_cache", Future)
    with pytest.raises(RuntimeError, match="TimeoutError"):
        client.call_utility("reset_prefix_cache")


def test_a_failed_step_is_the_end(client: InprocClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client.add_request(request("a"))
    monkeypatch.setattr(client._core.scheduler, "schedule", lambda: 1 / 0)
    with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
        client.get_bag()
    with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
        client.add_request(request("b"))
    client.abort_requests(["a"])
    assert client.dead_error is not None


def test_an_engine_core_that_sends_nothing_cannot_be_traced(tiny_model_path: Path) -> None:
    with pytest.raises(VLLMValidationError, match="trace_level must be 0"):
        make_client(toy_config(tiny_model_path, trace_level=1), multiprocess_mode=False)


@pytest.mark.parametrize("multiprocess_mode", [False, True])
def test_several_engine_cores_need_a_loop(tiny_model_path: Path, multiprocess_mode: bool) -> None:
    config = toy_config(tiny_model_path)
    config.parallel_config.data_parallel_size = 2
    with pytest.raises(VLLMValidationError, match="data_parallel_size must be 1"):
        make_client(config, multiprocess_mode=multiprocess_mode)
