"""The client against a real engine core with the toy executor: calls, pings, death, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frontend.core_client.conftest import children
from tests.frontend.helpers import request, stop, toy_config
from vllm_lite.exceptions import EngineDeadError
from vllm_lite.frontend.core_client import AsyncMPClient, EngineCoreClient, make_async_mp_client
from vllm_lite.wire.messages import EngineCoreOutput


@pytest.fixture
def client(tiny_model_path: Path) -> Iterator[AsyncMPClient]:
    made = make_async_mp_client(toy_config(tiny_model_path, step_time=0.001))
    assert isinstance(made, AsyncMPClient)
    yield made
    made.shutdown()
    assert children() == []


async def rows_of(client: EngineCoreClient, request_id: str) -> list[EngineCoreOutput]:
    """All rows of a request until its last."""
    rows: list[EngineCoreOutput] = []
    while not rows or rows[-1].finish_reason is None:
        rows += [row for row in (await client.get_bag_async()).outputs.outputs if row.request_id == request_id]
    return rows


async def test_a_request_is_answered(client: AsyncMPClient) -> None:
    posted = await client.add_request_async(request("a", max_tokens=3, ignore_eos=True))
    assert posted.engine_index == 0
    assert posted.body_size > 50
    assert [len(row.new_token_ids) for row in await rows_of(client, "a")] == [1, 1, 1]


async def test_an_abort_takes_effect_and_unknown_ids_are_harmless(client: AsyncMPClient) -> None:
    await client.add_request_async(request("long", max_tokens=400, ignore_eos=True))
    await client.get_bag_async()
    await client.abort_requests_async(["long", "unknown"])
    await client.abort_requests_async([])
    await client.add_request_async(request("next", max_tokens=2, ignore_eos=True))
    await rows_of(client, "next")
    assert await client.call_utility_async("reset_prefix_cache") is True  # nobody holds a block any more


async def test_calls(client: AsyncMPClient) -> None:
    (info,) = await client.call_utility_async("collective_rpc", "get_info", None, [], {})
    assert info["attention_backend"] == "toy"
    with pytest.raises(RuntimeError, match="no_such_method"):
        await client.call_utility_async("no_such_method")
    with pytest.raises(TypeError, match="cannot be encoded"):
        await client.call_utility_async("collective_rpc", object())
    await client.ping_async(5)
    assert client.resources.inbox._waiting == {}


async def test_case_19_a_cancelled_call_hurts_nobody(client: AsyncMPClient) -> None:
    cancelled = asyncio.create_task(client.call_utility_async("collective_rpc", "get_info"))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await client.ping_async(5)
    assert client.resources.inbox._waiting == {}


async def test_a_request_that_cannot_be_encoded_is_not_sent(client: AsyncMPClient) -> None:
    bad = request("bad")
    bad.reasoning_parser_kwargs = {"x": object()}
    with pytest.raises(TypeError, match="cannot be encoded"):
        await client.add_request_async(bad)
    await client.ping_async(5)


async def test_d2_a_stopped_core_is_found_out_and_recovers(client: AsyncMPClient) -> None:
    (pid,) = (ready.pid for ready in client.ready)
    stop(pid)
    with pytest.raises(EngineDeadError, match=r"has not answered for 0\.2 s: it is stopped or stuck"):
        await client.ping_async(0.2)
    os.kill(pid, signal.SIGCONT)
    await client.ping_async(5)
    assert client.dead_error is None


async def test_case_17_a_killed_core_releases_everyone(client: AsyncMPClient) -> None:
    (pid,) = (ready.pid for ready in client.ready)
    stop(pid)  # so that the call is pending when it dies
    call = asyncio.create_task(client.call_utility_async("collective_rpc", "get_info"))
    ping = asyncio.create_task(client.ping_async(60))
    getting = asyncio.create_task(client.get_bag_async())
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    for waiting in (call, ping, getting):
        with pytest.raises(EngineDeadError, match=rf"engine core 0 \(pid {pid}\) was ended by SIGKILL"):
            await asyncio.wait_for(waiting, 1)
    for later in (client.add_request_async(request("a")), client.call_utility_async("x"), client.ping_async(1)):
        with pytest.raises(EngineDeadError):
            await later
    await client.abort_requests_async(["a"])
    assert client.dead_error is not None
    assert client.dead_error.engine_index == 0


async def test_after_a_shutdown_every_call_fails(client: AsyncMPClient) -> None:
    await client.ping_async(5)
    waiting = asyncio.create_task(client.get_bag_async())
    await asyncio.sleep(0)
    client.shutdown()
    with pytest.raises(EngineDeadError, match="was shut down"):
        await waiting
    with pytest.raises(EngineDeadError, match="was shut down"):
        await client.ping_async(1)
    assert client.dead_error is not None
    assert client.dead_error.engine_index is None
    assert children() == []


async def test_a_shutdown_from_another_thread(client: AsyncMPClient) -> None:
    await client.ping_async(5)
    thread = threading.Thread(target=client.shutdown)
    thread.start()
    await asyncio.to_thread(thread.join)
    await asyncio.sleep(0)
    assert children() == []
    assert client.resources.inputs.closed


def test_a_client_that_is_forgotten_ends_its_core(tiny_model_path: Path) -> None:
    client = AsyncMPClient(toy_config(tiny_model_path))
    asyncio.run(client.ping_async(5))
    assert len(children()) == 1
    del client
    assert children() == []


def test_sockets_are_the_users_alone(client: AsyncMPClient) -> None:
    assert client.resources.engines is not None
    folder = client.resources.engines._folder
    assert folder.stat().st_mode & 0o777 == 0o700
    client.shutdown()
    assert not folder.exists()


def test_a_fork_of_the_owner_ends_nothing(client: AsyncMPClient) -> None:
    owner, client.resources._owner = client.resources._owner, -1
    client.resources.close()
    assert len(children()) == 1
    client.resources._owner = owner
