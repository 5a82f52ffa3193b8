"""Callers as programs have them: tasks that ask the engine, read their answers each in its way, and keep a record of their own.

Process: front end. Knows: EngineClient, the live screen. Does not know: options, spools. What a caller writes into client.jsonl
comes from what it received alone, so that `vllm-lite trace check` has a second witness.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_lite.console.live import LiveAnswers
from vllm_lite.exceptions import EngineDeadError, EngineGenerateError, QueueOverflowError, VLLMClientError
from vllm_lite.outputs import RequestOutput
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.tracing.check import read_client

if TYPE_CHECKING:  # most commands read a run and need no engine
    from vllm_lite.frontend.protocol import EngineClient
    from vllm_lite.frontend.renderer import Prompt

CLIENT_FILE = "client.jsonl"


@dataclass
class Call:
    """What one caller wants, and its habits: `slow` seconds between two takes, gone after `leaves_after` tokens."""

    number: int
    request_id: str
    text: str
    params: SamplingParams
    slow: float = 0.0
    leaves_after: int | None = None
    traceparent: str | None = None

    @property
    def habit(self) -> str:
        """What sets this caller apart, for the screen."""
        slow = f"  [waits {self.slow * 1000:g} ms between letters]" if self.slow else ""
        return slow + (f"  [leaves after {self.leaves_after} tokens]" if self.leaves_after is not None else "")


@dataclass
class Receipt:
    """A caller's own account of what it got."""

    request_id: str
    prompt: str
    token_ids: list[int] = field(default_factory=list)
    takes: int = 0
    text: str = ""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    traceparent: str | None = None
    sampler: str | None = field(default_factory=lambda: os.environ.get("OTEL_TRACES_SAMPLER"))  # it may leave the request out
    kind: str = "aborted"  # until it is known to be finished or error
    error: str | None = None
    texts: list[str] = field(default_factory=list)  # of each take

    def take(self, output: RequestOutput) -> None:
        """One more letter (DELTA outputs of one answer)."""
        answer = output.outputs[0]
        self.takes += 1
        self.token_ids += answer.token_ids
        self.text += answer.text
        self.texts.append(answer.text)
        if answer.finish_reason is not None:
            self.finish_reason, self.stop_reason = answer.finish_reason, answer.stop_reason
            self.kind = "aborted" if answer.finish_reason == "abort" else "finished"

    @property
    def ending(self) -> str:
        """How it ended, for the screen."""
        if self.error is not None:
            return f"error: {self.error}"
        if self.kind == "aborted":
            return "left by its caller"
        return f"stopped at {self.stop_reason!r}" if isinstance(self.stop_reason, str) else f"ended by {self.finish_reason}"


def read_texts(run_dir: Path) -> dict[str, list[str]]:
    """What each caller read at each take, by request id; nothing where no caller wrote it down."""
    return {line["request_id"]: line.get("texts", []) for line in read_client(run_dir) or ()}


class Callers:
    """Makes calls, at most `concurrency` at a time, and appends each one's receipt to client.jsonl in `run_dir`.

    With `chat` the model is asked in its own chat format, as instruct models are.
    """

    def __init__(
        self, engine: EngineClient, screen: LiveAnswers, run_dir: Path, concurrency: int, *, chat: bool = False
    ) -> None:
        self._engine, self._screen, self._chat = engine, screen, chat
        self._file = run_dir / CLIENT_FILE
        self._turns = asyncio.Semaphore(concurrency)
        self.receipts: list[Receipt] = []

    async def make(self, calls: Sequence[Call]) -> None:
        """Make all calls and wait for their ends. One's failure is its own; cancelling this cancels them all."""
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(self._one(call), name=f"caller {call.request_id}")

    async def _one(self, call: Call) -> None:
        async with self._turns:
            receipt = Receipt(call.request_id, call.text, traceparent=call.traceparent)
            self._screen.begin(call.number, call.text + call.habit)
            try:
                await self._read(call, receipt)
            except (VLLMClientError, QueueOverflowError, EngineGenerateError, EngineDeadError) as error:
                receipt.kind, receipt.error = "error", str(error)
            finally:
                self.receipts.append(receipt)
                self._screen.end(call.number, receipt.ending)
                with self._file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(vars(receipt), ensure_ascii=False) + "\n")

    async def _read(self, call: Call, receipt: Receipt) -> None:
        headers = {"traceparent": call.traceparent} if call.traceparent else None
        prompt: Prompt = [{"role": "user", "content": call.text}] if self._chat else call.text
        stream = self._engine.generate(prompt, call.params, call.request_id, trace_headers=headers)
        async with aclosing(stream):
            async for output in stream:
                receipt.take(output)
                answer = output.outputs[0]
                self._screen.letter(call.number, answer.text, len(answer.token_ids))
                if output.finished:
                    continue
                if call.leaves_after is not None and len(receipt.token_ids) >= call.leaves_after:
                    return
                if call.slow:
                    await asyncio.sleep(call.slow)
