"""What the front end knows of one request between its post and its last letter.

Process: front end, on the event loop. Knows: one request's text, ids and log probabilities, and what its caller wants to see of
them. Does not know: other requests, sockets.
Mirrors: vllm/v1/engine/output_processor.py (RequestState)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vllm_lite.frontend.collector import RequestOutputCollector
from vllm_lite.frontend.detokenizer import IncrementalDetokenizer
from vllm_lite.frontend.logprobs import LogprobsProcessor
from vllm_lite.frontend.parallel_sampling import ParentRequest
from vllm_lite.frontend.tokenizer import Tokenizer
from vllm_lite.metrics.stats import RequestStateStats
from vllm_lite.outputs import CompletionOutput, PoolingOutput, PoolingRequestOutput, RequestOutput
from vllm_lite.sampling_params import RequestOutputKind
from vllm_lite.wire.messages import EngineCoreRequest, FinishReason


class RequestState:
    """One request of the engine core: one answer, of perhaps several (`parent_req`, `request_index`) that a caller asked for.

    `queue` is None where the caller polls, `stats` where nothing is counted.
    `stream_interval`: an output for the first token, then for every so many.
    """

    __slots__ = (
        "_delta",
        "_final_only",
        "_sent",
        "_token_ids",
        "detokenizer",
        "external_req_id",
        "is_prefilling",
        "logprobs_processor",
        "num_cached_tokens",
        "parent_req",
        "pooling",
        "prompt",
        "prompt_token_ids",
        "queue",
        "request_id",
        "request_index",
        "sampling_params",
        "stats",
        "stream_interval",
        "trace",
    )

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        request: EngineCoreRequest,
        prompt: str | None,
        *,
        parent_req: ParentRequest | None = None,
        request_index: int = 0,
        queue: RequestOutputCollector | None = None,
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
        self.queue = queue
        self.trace = None if queue is None else queue.trace
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
        self._sent = 0  # how many tokens there were when an output last went out

    def make_request_output(
        self, new_token_ids: list[int], finish_reason: FinishReason | None, stop_reason: int | str | None
    ) -> RequestOutput | None:
        """The output that goes to the caller now; None where it is not time for one.

        Its containers are its own: nothing that happens later changes an output that was handed out.
        """
        finished = finish_reason is not None
        if self.stream_interval > 1 or not self._delta:
            self._token_ids.extend(new_token_ids)
            if not finished and (self._final_only or not self._is_due()):
                return None
            new_token_ids = self._take_token_ids()
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

    def _is_due(self) -> bool:
        num_tokens = self.detokenizer.num_tokens
        return self._sent == 0 or num_tokens - self._sent >= self.stream_interval

    def _take_token_ids(self) -> list[int]:
        self._sent = self.detokenizer.num_tokens
        if not self._delta:
            return list(self._token_ids)
        taken, self._token_ids = self._token_ids, []
        return taken

    def _completion(
        self, token_ids: list[int], finish_reason: FinishReason | None, stop_reason: int | str | None
    ) -> CompletionOutput:
        finished = finish_reason is not None
        text = self.detokenizer.get_next_output_text(finished, self._delta)
        logprobs = self.logprobs_processor
        if logprobs is None:
            if not finished:
                return CompletionOutput(self.request_index, text, token_ids)
            return CompletionOutput(self.request_index, text, token_ids, None, None, str(finish_reason), stop_reason)
        return CompletionOutput(
            self.request_index,
            text,
            token_ids,
            logprobs.cumulative_logprob,
            logprobs.take_logprobs(self._delta),
            None if finish_reason is None else str(finish_reason),
            stop_reason,
        )
