"""A prompt that comes in parts, a session: takes each from the caller's generator and sends it when its turn has come.

Process: front end, one task for each session. Knows: the caller's generator, what all parts must have in common. Does not know:
how the engine core goes on with a session.
A part is sent once the answer to the one before has ended: only then is it known how long the session is. The generator runs
one part ahead.
Mirrors: vllm/v1/engine/async_llm.py (_add_streaming_input_request)
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

from vllm_lite.config.checks import refuse
from vllm_lite.exceptions import EngineGenerateError
from vllm_lite.frontend.collector import RequestOutputCollector
from vllm_lite.frontend.core_client import EngineCoreClient
from vllm_lite.frontend.input_processor import InputProcessor
from vllm_lite.frontend.output_handler import send_abort
from vllm_lite.frontend.output_processor import OutputProcessor
from vllm_lite.frontend.protocol import StreamingInput
from vllm_lite.frontend.renderer import Prompt
from vllm_lite.frontend.stamps import Stamps
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams
from vllm_lite.tracing.request_trace import RequestTrace
from vllm_lite.wire.messages import EngineCoreRequest

# What the front end has set up for the whole session by the time its first part comes.
FIXED = ("output_kind", "detokenize", "skip_special_tokens", "include_stop_str_in_output", "logprobs", "stream_interval")

# Prompt, params and how many tokens the session has; also gives the text of the prompt.
MakeRequest = Callable[[Prompt, SamplingParams, int], Awaitable[tuple[EngineCoreRequest, str | None]]]


def check_streamable(params: object, field: str = "params") -> SamplingParams:
    """Refuse what a session cannot do."""
    if not isinstance(params, SamplingParams):
        raise refuse(field, type(params).__name__, "SamplingParams where the prompt comes in parts")
    for name, wrong, accepted in (
        ("n", params.n > 1, "1"),
        ("output_kind", params.output_kind is RequestOutputKind.FINAL_ONLY, "DELTA or CUMULATIVE"),
        ("stop", bool(params.stop), "empty (stop_token_ids work)"),
        ("prompt_logprobs", params.prompt_logprobs is not None, "None"),
    ):
        if wrong:
            raise refuse(name, getattr(params, name), f"{accepted} where the prompt comes in parts")
    return params


class InputFeeder:
    """Opens a session and feeds it, until its input or the session ends."""

    def __init__(
        self,
        request_id: str,
        params: object,
        input_processor: InputProcessor,
        output_processor: OutputProcessor,
        engine_core: EngineCoreClient,
    ) -> None:
        self._params = check_streamable(params).clone()
        self._opening = input_processor.process_inputs(request_id, [0], self._params, resumable=True)
        self._opening.prompt_token_ids = []
        input_processor.assign_request_id(self._opening)
        self.request_id = self._opening.request_id  # the engine's
        self._processor = output_processor
        self._engine_core = engine_core

    def start(
        self,
        parts: AsyncGenerator[StreamingInput, None],
        make: MakeRequest,
        post: Callable[[EngineCoreRequest], Awaitable[None]],
        trace: RequestTrace | None,
        stamps: Stamps,
    ) -> RequestOutputCollector:
        """Register the session and start the task that feeds it. `make` checks a part and makes a request of it, `post` sends
        that."""
        self._make, self._post, self._stamps = make, post, stamps
        collector = RequestOutputCollector(self._params.output_kind, self.request_id, trace, stamps)
        self._processor.add_request(self._opening, None, collector)
        session = self._processor.request_states[self.request_id].session
        assert session is not None
        self._session = session
        session.feeder = asyncio.create_task(self.run(parts), name=f"input-{self.request_id}")
        return collector

    async def run(self, parts: AsyncGenerator[StreamingInput, None]) -> None:
        """The task's body. Cancelled when the session ends from elsewhere or with an answer; however it ends, the engine core
        forgets the session and the generator is closed."""
        session, request_id, stamps, asking = self._session, self.request_id, None, True
        async with contextlib.aclosing(parts):
            try:
                async for part in parts:
                    asking = False
                    await session.idle.wait()
                    await self._send(part)
                    asking = True
                session.exhausted = True
                await session.idle.wait()
                self._processor.end_input(request_id)
            except BaseException as error:
                reason = error if isinstance(error, Exception) else EngineGenerateError("the prompt's next part was cancelled")
                if self._processor.end_input(request_id, reason, from_caller=asking):
                    stamps = self._stamps  # this end is an abort
                if reason is not error:
                    raise
            finally:
                await send_abort(self._engine_core, [request_id], "api", stamps)

    async def _send(self, part: StreamingInput) -> None:
        if not isinstance(part, StreamingInput):
            raise refuse("prompt", part, "StreamingInput in each of its parts")
        params = self._params
        if part.sampling_params is not None:
            params = check_streamable(part.sampling_params, "sampling_params")
            for name in FIXED:
                if getattr(params, name) != getattr(self._params, name):
                    raise refuse(name, getattr(params, name), f"{getattr(self._params, name)!r} in every part, as in the first")
        num_tokens = self._session.num_tokens
        request, text = await self._make(part.prompt, params, num_tokens)
        opening = self._opening
        request.request_id, request.external_req_id = opening.request_id, opening.external_req_id
        request.continues = num_tokens > 0
        if not request.continues:
            opening.cache_salt = request.cache_salt
        elif request.cache_salt not in (None, opening.cache_salt):
            raise refuse("cache_salt", request.cache_salt, "that of the session's first part")
        self._processor.add_part(request, text)
        await self._post(request)
