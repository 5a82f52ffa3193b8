"""An engine without processes: answers are lists of words, one a turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

from vllm_lite.outputs import CompletionOutput, RequestOutput
from vllm_lite.sampling_params import SamplingParams


class FakeEngine:
    """`answers` by request id; an exception in the place of a word is raised. `ended` lists how each stream ended."""

    def __init__(self, answers: Mapping[str, list[str | Exception]], finish_reason: str = "length") -> None:
        self.answers, self.finish_reason = answers, finish_reason
        self.headers: dict[str, Mapping[str, str] | None] = {}
        self.open = self.most_open = 0
        self.two_open = asyncio.Event()
        self.ended: dict[str, str] = {}

    async def generate(
        self,
        prompt: object,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        trace_headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The words of `request_id`'s answer, one by one."""
        self.headers[request_id] = trace_headers
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        if self.open == 2:
            self.two_open.set()
        words = self.answers[request_id]
        try:
            for i, word in enumerate(words):
                await asyncio.sleep(0)
                if isinstance(word, Exception):
                    raise word
                last = i == len(words) - 1
                reason = self.finish_reason if last else None
                answer = CompletionOutput(0, word, [i], finish_reason=reason, stop_reason="." if reason == "stop" else None)
                yield RequestOutput(request_id, None, None, None, [answer], finished=last)
            self.ended[request_id] = "finished"
        except GeneratorExit:
            self.ended[request_id] = "closed"
            raise
        except asyncio.CancelledError:
            self.ended[request_id] = "cancelled"
            raise
        finally:
            self.open -= 1
