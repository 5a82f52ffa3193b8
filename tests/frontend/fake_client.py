"""An engine core client without an engine core: the test decides what comes back, and when a send may go on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_lite.exceptions import EngineDeadError
from vllm_lite.frontend.core_client import Bag, EngineCoreClient, Posted
from vllm_lite.wire.messages import (
    PROTOCOL_VERSION,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreReadyResponse,
    EngineCoreRequest,
)


class FakeClient(EngineCoreClient):
    """`added` and `aborts` are what was sent. While `gate` is set and closed, sends of requests wait there."""

    def __init__(self) -> None:
        tasks = ["generate", "embed"]
        self.ready = [
            EngineCoreReadyResponse(PROTOCOL_VERSION, 0, 1, 512, 100, 16, "int64", "cpu", 320, "fake", supported_tasks=tasks)
        ]
        self.added: list[EngineCoreRequest] = []
        self.aborts: list[tuple[list[str], str, dict[str, str]]] = []
        self.gate: asyncio.Event | None = None
        self.send_error: Exception | None = None
        self.error: EngineDeadError | None = None
        self._bags: asyncio.Queue[Bag | Exception] = asyncio.Queue()

    def put(self, *rows: EngineCoreOutput, **fields: Any) -> None:
        """Let a bag arrive, received at 10 and decoded at 20 ns, of 300 bytes."""
        self._bags.put_nowait(Bag(EngineCoreOutputs(outputs=list(rows), **fields), 10, 20, 300))

    def fail(self, error: Exception) -> None:
        """Let the engine core die, or the client break."""
        if isinstance(error, EngineDeadError):
            self.error = error
        self._bags.put_nowait(error)

    @property
    def dead_error(self) -> EngineDeadError | None:
        return self.error

    async def get_bag_async(self) -> Bag:
        item = await self._bags.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def add_request_async(self, request: EngineCoreRequest) -> Posted:
        if self.gate is not None:
            await self.gate.wait()
        if self.send_error is not None:
            raise self.send_error
        self.added.append(request)
        return Posted(0, 100)

    async def abort_requests_async(
        self, request_ids: Sequence[str], reason: str = "api", trace_headers: Mapping[str, str] | None = None
    ) -> None:
        self.aborts.append((list(request_ids), reason, dict(trace_headers or {})))

    async def call_utility_all_async(self, method: str, *args: Any) -> list[Any]:
        raise NotImplementedError(method)

    async def ping_async(self, seconds: float) -> None:
        raise NotImplementedError

    def shutdown(self, timeout: float | None = None) -> None:
        self.error = self.error or EngineDeadError("the engine was shut down")
