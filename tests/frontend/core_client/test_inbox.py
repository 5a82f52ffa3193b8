"""Each message finds who waits for it; what nobody can read or wants is dropped; death is the last news and reaches all."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from vllm_lite.exceptions import EngineDeadError
from vllm_lite.frontend.core_client.inbox import Inbox
from vllm_lite.wire.messages import ENGINE_CORE_DEAD, EngineCoreOutput, EngineCoreOutputs, UtilityOutput
from vllm_lite.wire.serial_utils import MsgpackEncoder
from vllm_lite.wire.stats import SchedulerStats


class Wire:
    """An inbox, the engine core's end of its socket, and how often a last word was heard."""

    def __init__(self) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        pull, self._push = self._context.socket(zmq.PULL), self._context.socket(zmq.PUSH)
        pull.bind("inproc://outputs")
        self._push.connect("inproc://outputs")
        self.last_words = 0
        self.inbox = Inbox()
        self.inbox.listen(pull)
        self.inbox.on_last_word = self._on_last_word

    def _on_last_word(self) -> None:
        self.last_words += 1

    def send(self, *frames: bytes) -> None:
        self._push.send_multipart(frames)

    def send_outputs(self, **fields: Any) -> None:
        self._push.send_multipart(MsgpackEncoder().encode(EngineCoreOutputs(**fields)))

    def close(self) -> None:
        self.inbox.close()
        self._context.destroy(linger=0)


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


def rows(request_id: str) -> list[EngineCoreOutput]:
    return [EngineCoreOutput(request_id, [1])]


async def test_bags_come_in_order_with_their_arrival(wire: Wire) -> None:
    wire.send_outputs(outputs=rows("a"))  # before anybody reads
    wire.inbox.start()
    wire.send_outputs(outputs=rows("b"))
    wire.send_outputs(scheduler_stats=SchedulerStats(num_running_reqs=1))
    bags = [await wire.inbox.get() for _ in range(3)]
    assert [[row.request_id for row in bag.outputs.outputs] for bag in bags] == [["a"], ["b"], []]
    assert all(0 < bag.t_received <= bag.t_decoded and bag.body_size > 10 for bag in bags)


async def test_an_empty_message_is_no_bag(wire: Wire) -> None:
    wire.inbox.start()
    wire.send_outputs()
    wire.send_outputs(outputs=rows("a"))
    assert (await wire.inbox.get()).outputs.outputs[0].request_id == "a"


async def test_answers_find_their_calls(wire: Wire) -> None:
    wire.inbox.start()
    first, second = wire.inbox.expect(1), wire.inbox.expect(2)
    pong = wire.inbox.expect(3)
    wire.send_outputs(utility_output=UtilityOutput(2, None, [1, "a"]))
    wire.send_outputs(utility_output=UtilityOutput(1, "Call to f method failed: no"))
    assert await second == [1, "a"]
    with pytest.raises(RuntimeError, match="Call to f method failed: no"):
        await first
    assert not pong.done()
    wire.send_outputs(pong=3)
    await pong


async def test_case_19_answers_that_nobody_waits_for_are_dropped(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    wire.inbox.start()
    cancelled = wire.inbox.expect(1)
    cancelled.cancel()
    wire.send_outputs(utility_output=UtilityOutput(1, None, "late"))
    wire.send_outputs(utility_output=UtilityOutput(99, "failed"))
    wire.send_outputs(pong=7)
    wire.send_outputs(outputs=rows("a"))
    assert (await wire.inbox.get()).outputs.outputs[0].request_id == "a"
    assert "call 1, which nobody waits for" in caplog.text
    assert "call 99, which nobody waits for" in caplog.text


async def test_garbage_is_dropped_and_what_follows_is_read(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    wire.inbox.start()
    for frames in ((b"",), (b"\xc1",), (b"\x93abc", b"more"), (ENGINE_CORE_DEAD,), (b"\x00" * 1000,)):
        wire.send(*frames)
    wire.send_outputs(outputs=rows("a"))
    assert (await wire.inbox.get()).outputs.outputs[0].request_id == "a"
    assert caplog.text.count("was dropped") == len(caplog.text.splitlines()) == 5  # one line for each
    assert wire.inbox.error is None


async def test_a_last_word_fails_everybody_after_the_bags_before_it(wire: Wire) -> None:
    wire.inbox.start()
    call, pong = wire.inbox.expect(1), wire.inbox.expect(2)
    wire.send_outputs(outputs=rows("a"))
    wire.send(ENGINE_CORE_DEAD, b"\x02\x01")
    assert (await wire.inbox.get()).outputs.outputs[0].request_id == "a"
    for waiting in (wire.inbox.get(), call, pong, wire.inbox.get()):
        with pytest.raises(EngineDeadError, match="engine core 258 met a fatal error"):
            await waiting
    with pytest.raises(EngineDeadError):
        wire.inbox.check_alive()
    assert (wire.last_words, wire.inbox.error and wire.inbox.error.engine_index) == (1, 258)


async def test_case_17_news_from_another_thread(wire: Wire) -> None:
    wire.inbox.start()
    call, getting = wire.inbox.expect(1), asyncio.create_task(wire.inbox.get())
    thread = threading.Thread(target=wire.inbox.fail_threadsafe, args=(EngineDeadError("killed", 4),))
    thread.start()
    thread.join()
    assert str(wire.inbox.error) == "killed"  # before the loop had its turn
    for waiting in (call, getting):
        with pytest.raises(EngineDeadError, match="killed") as caught:
            await waiting
        assert caught.value.engine_index == 4
    wire.inbox.fail(EngineDeadError("again"))
    assert str(wire.inbox.error) == "killed"


def test_news_without_a_loop(wire: Wire) -> None:
    wire.inbox.fail_threadsafe(EngineDeadError("killed"))

    async def later() -> None:
        wire.inbox.start()
        await wire.inbox.get()

    with pytest.raises(EngineDeadError, match="killed"):
        asyncio.run(later())


def test_news_after_the_loop_was_closed(wire: Wire) -> None:
    async def use() -> None:
        wire.inbox.start()

    asyncio.run(use())
    wire.inbox.fail_threadsafe(EngineDeadError("killed"))
    assert str(wire.inbox.error) == "killed"


def test_one_inbox_belongs_to_one_loop(wire: Wire) -> None:
    async def use() -> None:
        wire.inbox.start()
        wire.inbox.start()

    asyncio.run(use())
    with pytest.raises(RuntimeError, match="belongs to another event loop"):
        asyncio.run(use())


async def test_reading_happens_in_an_empty_context(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nobody's")
    seen: list[str] = []
    read = wire.inbox._read
    monkeypatch.setattr(wire.inbox, "_read", lambda: (seen.append(variable.get()), read()))
    variable.set("the first caller's")
    wire.inbox.start()
    seen.clear()
    wire.send_outputs(outputs=rows("a"))
    await wire.inbox.get()
    assert set(seen) == {"nobody's"}
