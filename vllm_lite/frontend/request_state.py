"""What the front end knows of one request between its post and its last letter.

Process: front end, on the event loop. Knows: one request's text, ids and log probabilities, and what its caller wants to see of
them. Does not know: other requests, sockets.
Mirrors: vllm/v1/engine/output_processor.py (RequestState)
"""

import asyncio
from typing import Any

import numpy as np

from vllm_lite.frontend.collector import RequestOutputCollector
from vllm_lite.frontend.detokenizer import IncrementalDetokenizer
from vllm_lite.frontend.logprobs import LogprobsProcessor
from vllm_lite.frontend.parallel_sampling import ParentRequest
from vllm_lite.frontend.tokenizer import Tokenizer
from vllm_lite.metrics.stats import RequestStateStats
from vllm_lite.outputs import CompletionOutput, PoolingOutput, PoolingRequestOutput, RequestOutput, WeightVersionSpan
from vllm_lite.sampling_params import RequestOutputKind
from vllm_lite.wire.messages import DEFAULT_WEIGHT_VERSION, EngineCoreRequest, FinishReason


class InputSession:
    """A prompt that comes in parts. `idle`: it waits for one; `exhausted`: none will come any more.

    `num_tokens` are those that the next part follows, once the last one is answered: all parts, and all answers but the last
    token of each, which the engine core drops. `feeder` brings the parts, and is cancelled when the request ends.
    """

    def __init__(self) -> None:
        self.idle = asyncio.Event()
        self.idle.set()
        self.exhausted = False
        self.num_tokens = 0
        self.num_answered = 0  # tokens of the answers before this part's
        self.last_end: tuple[FinishReason | None, int | str | None] = (FinishReason.STOP, None)  # of an answer
        self.feeder: asyncio.Task[None] | None = None

    def end_part(self, num_answered: int, finish_reason: FinishReason | None, stop_reason: int | str | None) -> None:
        """The answer to a part has ended, after so many tokens in all answers."""
        self.num_tokens += num_answered - self.num_answered - 1
        self.last_end = finish_reason, stop_reason
        self.idle.set()

    def end(self) -> None:
        """The request has ended, however it did. Whoever feeds it nevertheless waits for nothing, and finds it gone."""
        self.idle.set()
        if self.feeder is not None:
            self.feeder.cancel()


class RequestState:
    """One request of the engine core: one answer, of perhaps several (`parent_req`, `request_index`) that a caller asked for.

    `stats` is None where nothing is counted.
    `stream_interval`: an output for the first token, then for every so many.
    `session` is there where the prompt comes in parts: texts and ids go on over all of them, figures are those of a part.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        request: EngineCoreRequest,
        prompt: str | None,
        queue: RequestOutputCollector,
        *,
        parent_req: ParentRequest | None = None,
        request_index: int = 0,
        stream_interval: int = 1,
        log_stats: bool = False,
    ) -> None:
        params = self.sampling_params = request.sampling_params
        self.pooling = params is None
        self.request_id = request.request_id
        self.external_req_id = request.external_req_id or request.request_id
        self.parent_req = parent_req
        self.request_index = request_index
        self.prompt = prompt
        self.prompt_token_ids = request.prompt_token_ids or []
        self.num_new_prompt_tokens = len(self.prompt_token_ids)  # less than all in a session's later parts
        self.session = InputSession() if request.resumable else None
        self.queue = queue
        self.trace = queue.trace
        self.stream_interval = max(stream_interval, (params and params.stream_interval) or 1)
        self.detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, request)
        wants_logprobs = params is not None and (params.logprobs is not None or params.prompt_logprobs is not None)
        self.logprobs_processor = LogprobsProcessor(tokenizer, request) if wants_logprobs else None
        self.stats = RequestStateStats(request.arrival_time) if log_stats else None
        self.is_prefilling = True
        self.num_cached_tokens = 0
        self._delta = request.params.output_kind is RequestOutputKind.DELTA
        self._final_only = request.params.output_kind is RequestOutputKind.FINAL_ONLY
        self._token_ids: list[int] = []  # not handed out yet (DELTA), or all
        self._weight_versions: list[tuple[str, int]] = []  # each with its first token
        self._sent = 0  # how many tokens there were when an output last went out

    def begin_part(self, tokenizer: Tokenizer | None, request: EngineCoreRequest, prompt: str | None) -> None:
        """A session's next part is about to be sent."""
        session, part = self.session, request.prompt_token_ids
        assert session is not None
        assert part is not None
        if not self.prompt_token_ids:
            self.detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, request)
        session.idle.clear()
        session.num_tokens += len(part)
        session.num_answered = self.detokenizer.num_tokens
        self.prompt_token_ids = [*self.prompt_token_ids, *part]
        self.num_new_prompt_tokens = len(part)
        if prompt is not None:
            self.prompt = (self.prompt or "") + prompt
        self.sampling_params = request.sampling_params
        if self.stats is not None:
            self.stats = RequestStateStats(request.arrival_time)
        self.is_prefilling = True

    def ends(self, finish_reason: FinishReason) -> bool:
        """Whether an answer that ended so is the request's end: in a session not while more parts may come."""
        return self.session is None or self.session.exhausted or finish_reason not in (FinishReason.STOP, FinishReason.LENGTH)

    def note_weight_version(self, version: str) -> None:
        """The next tokens were made with these weights."""
        starts, num_tokens = self._weight_versions, self.detokenizer.num_tokens
        if not starts and num_tokens:
            starts.append((DEFAULT_WEIGHT_VERSION, 0))
        if not starts or starts[-1][0] != version:
            starts.append((version, num_tokens))

    def _version_spans(self) -> list[WeightVersionSpan] | None:
        starts = self._weight_versions
        ends = [*(start for _, start in starts[1:]), self.detokenizer.num_tokens]
        return [WeightVersionSpan(*start, end) for start, end in zip(starts, ends, strict=False)] or None

    def make_request_output(
        self, new_token_ids: list[int], finish_reason: FinishReason | None, stop_reason: int | str | None
    ) -> RequestOutput | None:
        """The output that goes to the caller now; None where it is not time for one.

        Its containers are its own: nothing that happens later changes an output that was handed out.
        """
        if self.stream_interval > 1 or not self._delta:
            self._token_ids.extend(new_token_ids)
            early = self._sent > 0 and self.detokenizer.num_tokens < self._sent + self.stream_interval
            if finish_reason is None and (early or self._final_only):
                return None
            self._sent = self.detokenizer.num_tokens
            new_token_ids = self._token_ids
            self._token_ids = [] if self._delta else list(new_token_ids)
        finished = finish_reason is not None and self.ends(finish_reason)
        completion = self._completion(new_token_ids, finish_reason, stop_reason)
        outputs = [completion]
        if self.parent_req is not None:
            outputs, finished = self.parent_req.get_outputs(self.request_id, completion)
            if not outputs:
                return None
        logprobs = self.logprobs_processor
        return RequestOutput(
            self.external_req_id,
            self.prompt,
            self.prompt_token_ids,
            None if logprobs is None else logprobs.take_prompt_logprobs(self._delta),
            outputs,
            finished,
            self.num_cached_tokens,
        )

    def make_pooling_output(self, data: Any) -> PoolingRequestOutput:
        """The one output of `encode()`. `data`: float32 [hidden_size]; None where the request was aborted, which gives [0]."""
        vector = PoolingOutput(np.zeros(0, np.float32) if data is None else data)
        return PoolingRequestOutput(self.external_req_id, vector, self.prompt_token_ids, True, self.num_cached_tokens)

    def _completion(
        self, token_ids: list[int], finish_reason: FinishReason | None, stop_reason: int | str | None
    ) -> CompletionOutput:
        finished = finish_reason is not None
        text = self.detokenizer.get_next_output_text(finished, self._delta)
        completion = CompletionOutput(self.request_index, text, token_ids)
        logprobs = self.logprobs_processor
        if logprobs is not None:
            completion.cumulative_logprob = logprobs.cumulative_logprob
            completion.logprobs = logprobs.take_logprobs(self._delta)
        if finished:
            completion.finish_reason, completion.stop_reason = str(finish_reason), stop_reason
            completion.weight_versions = self._version_spans()
        return completion
