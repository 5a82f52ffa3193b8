"""Frames that no program of ours would send are dropped, in either direction; requests go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from tests.flow.conftest import MakeEngine
from vllm_lite import AsyncLLM, SamplingParams
from vllm_lite.engine_core.executor.toy import expected_tokens
from vllm_lite.frontend.core_client import AsyncMPClient
from vllm_lite.wire.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineCoreRequestType,
    FinishReason,
    UtilityOutput,
)

PROMPT = list(b"a good neighbour")
CORE = b"\x00\x00"  # the identity of engine core 0


def encoded(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


async def unharmed(engine: AsyncLLM, misuse: Callable[[zmq.Socket[Any]], None], kind: int, where: str) -> None:
    """A stranger's socket of `kind` does `misuse` while a request streams and before another comes; both get their tokens."""
    client = engine.engine_core
    assert isinstance(client, AsyncMPClient)

    async def answer(name: str) -> list[int]:
        *_, last = [output async for output in engine.generate(PROMPT, SamplingParams(max_tokens=100, ignore_eos=True), name)]
        return last.outputs[0].token_ids

    with zmq.Context() as context, context.socket(kind) as stranger:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(answer("running"))
            if where == "inputs":
                misuse(client.resources.inputs)
            else:
                assert client.resources.engines is not None
                stranger.connect(client.resources.engines.addresses[0]["output_address"])
                misuse(stranger)
        assert running.result() == await answer("after") == expected_tokens(PROMPT, 100)
    assert not engine.errored
    await engine.check_health()


async def test_to_the_engine_core(make_engine: MakeEngine) -> None:
    wrong_params = encoded(EngineCoreRequest("x", [1], None, None, None, 0.0))
    unfit = encoded(["x", [1], None, {"top_p": 2}, None, 0.0])

    def misuse(inputs: zmq.Socket[Any]) -> None:
        for kind in (*(kind.value for kind in EngineCoreRequestType), b"\x63", b"", b"longer than one byte"):
            for body in ([], [b""], [b"garbage"], [encoded({})], [encoded([])], [encoded(None)], [encoded([1]), b"extra"]):
                inputs.send_multipart([CORE, kind, *body])
        inputs.send_multipart([CORE, EngineCoreRequestType.ADD.value, wrong_params])
        inputs.send_multipart([CORE, EngineCoreRequestType.ADD.value, unfit])
        inputs.send_multipart([CORE, EngineCoreRequestType.UTILITY.value, encoded([0, 77, "no_such_method", []])])
        inputs.send_multipart([CORE, EngineCoreRequestType.UTILITY.value, encoded([9, 77, "no_such_method", []])])
        inputs.send_multipart([CORE, EngineCoreRequestType.ABORT.value, encoded([["nobody"], "api", {}])])

    await unharmed(make_engine(), misuse, zmq.DEALER, "inputs")


async def test_to_the_front_end(make_engine: MakeEngine) -> None:
    strangers = [
        EngineCoreOutputs(outputs=[EngineCoreOutput("nobody", [65], finish_reason=FinishReason.STOP)]),
        EngineCoreOutputs(utility_output=UtilityOutput(12345, None, "an answer to no call")),
        EngineCoreOutputs(pong=12345),
        EngineCoreOutputs(engine_index=9),
    ]

    def misuse(outputs: zmq.Socket[Any]) -> None:
        for frames in (
            [b""],
            [b"garbage"],
            [encoded({})],
            [encoded([])],
            [encoded(None)],
            [encoded([0]), b"extra"],
            [b"", b""],
        ):
            outputs.send_multipart(frames)
        for bag in strangers:
            outputs.send_multipart([encoded(bag)])

    await unharmed(make_engine(), misuse, zmq.PUSH, "outputs")
