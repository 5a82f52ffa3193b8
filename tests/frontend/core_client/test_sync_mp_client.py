"""The client without a loop against a real engine core: the same answers, the same errors, nothing left behind."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frontend.core_client.conftest import children
from tests.frontend.helpers import request, toy_config
from vllm_lite.exceptions import EngineDeadError
from vllm_lite.frontend.core_client import SyncEngineCoreClient, SyncMPClient, make_client
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
        rows += [row for row in client.get_output().outputs if row.request_id == request_id]
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
