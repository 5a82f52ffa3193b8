"""From the rows of a bag to letters in mailboxes.

Process: front end, on the event loop. Knows: every request in flight, by internal and by external id. Does not know: sockets;
it says which requests the engine core must be told to give up.
Mirrors: vllm/v1/engine/output_processor.py
"""

import copy
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vllm_lite.config.checks import refuse
from vllm_lite.exceptions import EngineDeadError, EngineGenerateError
from vllm_lite.frontend.collector import RequestOutputCollector
from vllm_lite.frontend.parallel_sampling import ParentRequest
from vllm_lite.frontend.request_state import RequestState
from vllm_lite.frontend.stamps import BagStamp
from vllm_lite.frontend.tokenizer import Tokenizer
from vllm_lite.metrics.stats import IterationStats
from vllm_lite.outputs import PoolingRequestOutput, RequestOutput
from vllm_lite.tracing.log import logged_as
from vllm_lite.tracing.recorder import now_ns
from vllm_lite.tracing.records import KEPT_BACK, PUT
from vllm_lite.wire.messages import EngineCoreOutput, EngineCoreRequest, FinishReason

logger = logging.getLogger(__name__)

__all__ = ["OutputProcessor", "OutputProcessorOutput", "RequestOutputCollector", "RequestState"]


@dataclass(slots=True)
class OutputProcessorOutput:
    """`reqs_to_abort`: ended by a stop string, or by a failure here, neither of which the engine core can see."""

    reqs_to_abort: list[str] = field(default_factory=list)


class OutputProcessor:
    """Keeps the state of requests in flight. `stream_interval` is the engine's own; a request may ask for a longer one."""

    def __init__(self, tokenizer: Tokenizer | None, *, log_stats: bool = False, stream_interval: int = 1) -> None:
        self.tokenizer = tokenizer
        self.log_stats = log_stats
        self.stream_interval = stream_interval
        self.request_states: dict[str, RequestState] = {}
        self.parent_requests: dict[str, ParentRequest] = {}
        self.external_req_ids: dict[str, list[str]] = {}
        self._num_queued_tokens = 0

    def get_num_unfinished_requests(self) -> int:
        """Requests in the engine, each child of n > 1 counted."""
        return len(self.request_states)

    def has_unfinished_requests(self) -> bool:
        """True while any request is in the engine."""
        return bool(self.request_states)

    def get_num_queued_tokens(self) -> int:
        """Prompt tokens of requests that have not made their first token yet."""
        return self._num_queued_tokens

    def add_request(
        self,
        request: EngineCoreRequest,
        prompt: str | None,
        queue: RequestOutputCollector,
        parent_req: ParentRequest | None = None,
        request_index: int = 0,
    ) -> None:
        """Register `request`, before it is sent. Raises VLLMValidationError where its internal id is in use."""
        request_id = request.request_id
        if request_id in self.request_states:
            raise refuse("request_id", request_id, "the id of no other request in flight")
        state = RequestState(
            self.tokenizer,
            request,
            prompt,
            queue,
            parent_req=parent_req,
            request_index=request_index,
            stream_interval=self.stream_interval,
            log_stats=self.log_stats,
        )
        if parent_req is not None:
            parent_req.child_requests.add(request_id)
            self.parent_requests[parent_req.request_id] = parent_req
        self.request_states[request_id] = state
        self.external_req_ids.setdefault(state.external_req_id, []).append(request_id)
        self._num_queued_tokens += state.num_new_prompt_tokens

    def add_part(self, request: EngineCoreRequest, prompt: str | None) -> None:
        """Note a session's next part, before it is sent."""
        state = self.request_states[request.request_id]
        state.begin_part(self.tokenizer, request, prompt)
        self._num_queued_tokens += state.num_new_prompt_tokens

    def end_input(self, request_id: str, error: Exception | None = None, *, from_caller: bool = False) -> bool:
        """No more parts come to a session; its caller gets `error`, where that is why, `from_caller` unchanged. False where the
        session had ended before."""
        state = self.request_states.get(request_id)
        if state is None or state.session is None:
            return False
        state.session.feeder = None  # whoever says this ends by itself
        if error is None:
            self._forget(state, *state.session.last_end)
            state.queue.finish()
        else:
            self._forget(state, None, None)
            state.queue.input_error = error if from_caller else None
            state.queue.put(error)
        return True

    def process_outputs(
        self,
        engine_core_outputs: Sequence[EngineCoreOutput],
        engine_core_timestamp: float | None = None,
        iteration_stats: IterationStats | None = None,
        stamp: BagStamp | None = None,
        weight_version: str | None = None,
    ) -> OutputProcessorOutput:
        """Sort rows into mailboxes. Rows of requests that are gone are passed over.

        `iteration_stats` counts them, their times from `engine_core_timestamp` (the engine core's monotonic clock); `stamp`
        notes the slice's time and each letter's fate; `weight_version` is what made their tokens, where the engine core says.
        """
        t0 = 0 if stamp is None else now_ns()
        processed = OutputProcessorOutput()
        states = self.request_states
        reqs = None if stamp is None or not stamp.by_letter else stamp.reqs
        gone: set[int] = set()  # rows that became no letter, by identity
        odd: dict[int, str] = {}  # the fates that are not PUT, by their rows' identity
        even = True  # every row brings one token
        for row in engine_core_outputs:
            state = states.get(row.request_id)
            if state is None:
                gone.add(id(row))
                continue
            if iteration_stats is not None and state.stats is not None:  # before a first row becomes one like any other
                new_prompt = state.num_new_prompt_tokens if state.is_prefilling else None
                iteration_stats.update_from_output(row, engine_core_timestamp or 0.0, state.stats, new_prompt)
            if weight_version is not None and row.new_token_ids:
                state.note_weight_version(weight_version)
            try:
                fate = self._sort(row, state, processed)
                if iteration_stats is not None and (row.finish_reason is not None or states.get(row.request_id) is not state):
                    _count_end(row, state, iteration_stats)
            except Exception as error:  # whatever it is, it is this request's alone
                self._fail(state, error, processed)
                gone.add(id(row))
                continue
            if fate is not PUT:
                odd[id(row)] = fate
            if len(row.new_token_ids) != 1:
                even = False
            if reqs is not None:
                reqs.append(state.queue.req)
        if stamp is not None:
            stamp.note_slice(engine_core_outputs, t0, gone, odd, even)
        return processed

    def abort_requests(self, request_ids: Iterable[str], internal: bool) -> list[str]:
        """Give requests up; each caller gets a last output with reason "abort" and what text was held back.

        Internal ids name a request or the parent of several, external ones all requests in flight under that id. Returns the
        internal ids that the engine core must be told; unknown ids are passed over.
        """
        aborted = []
        for request_id in request_ids:
            for internal_id in self._resolve(request_id, internal):
                state = self.request_states[internal_id]
                output = _aborted(state)
                if output is not None:
                    state.queue.put_farewell(output)
                self._forget(state, FinishReason.ABORT, None)
                aborted.append(internal_id)
        return aborted

    def propagate_error(self, error: Exception) -> None:
        """The engine is gone: every caller gets `error` (of its own: each raising adds to the traceback), nothing is kept."""
        for state in self.request_states.values():
            state.queue.put(copy.copy(error) if isinstance(error, EngineDeadError) else error)
            _note_end(state, None, None)
            if state.session is not None:
                state.session.end()
        self.request_states.clear()
        self.parent_requests.clear()
        self.external_req_ids.clear()
        self._num_queued_tokens = 0

    def _sort(self, row: EngineCoreOutput, state: RequestState, processed: OutputProcessorOutput) -> str:
        """One row: to text, to an output where it is time for one, into the mailbox; returns the letter's fate."""
        if state.is_prefilling:
            self._end_prefill(state, row)
        if state.pooling:
            return self._sort_vector(row, state)
        new_token_ids, finish_reason, stop_reason = row.new_token_ids, row.finish_reason, row.stop_reason
        stop_string = state.detokenizer.update(new_token_ids, finish_reason is FinishReason.STOP)
        if stop_string is not None:
            finish_reason, stop_reason = FinishReason.STOP, stop_string
        elif finish_reason is FinishReason.ERROR:
            stop_reason = row.error
        if state.logprobs_processor is not None:
            state.logprobs_processor.update_from_output(row, len(new_token_ids))
        output = state.make_request_output(new_token_ids, finish_reason, stop_reason)
        fate = KEPT_BACK
        if output is None:
            state.queue.kept_back += 1
        else:
            fate = state.queue.put(output)
        if finish_reason is not None:
            self._end_answer(state, finish_reason, stop_reason)
            if row.finish_reason is None:
                processed.reqs_to_abort.append(state.request_id)
        return fate

    def _sort_vector(self, row: EngineCoreOutput, state: RequestState) -> str:
        if row.finish_reason is FinishReason.ERROR:  # a vector has no place for the reason why there is none
            raise EngineGenerateError(f"request {state.external_req_id!r} failed: {row.error}")
        fate = state.queue.put(state.make_pooling_output(row.pooling_output))
        self._forget(state, row.finish_reason, None)
        return fate

    def _fail(self, state: RequestState, error: Exception, processed: OutputProcessorOutput) -> None:
        """The front end cannot go on with this request: its caller gets the error, the engine core gives it up."""
        with logged_as(None if state.trace is None else state.trace.context):
            logger.error("request %s failed", state.request_id, exc_info=error)
        state.queue.put(error)
        if self.request_states.get(state.request_id) is state:
            self._forget(state, None, None)
        processed.reqs_to_abort.append(state.request_id)

    def _resolve(self, request_id: str, internal: bool) -> list[str]:
        if not internal:
            return list(self.external_req_ids.get(request_id, ()))
        parent = self.parent_requests.get(request_id)
        if parent is not None:
            return sorted(parent.child_requests)
        return [request_id] if request_id in self.request_states else []

    def _end_prefill(self, state: RequestState, row: EngineCoreOutput) -> None:
        state.is_prefilling = False
        self._num_queued_tokens -= state.num_new_prompt_tokens
        if row.prefill_stats is not None:
            state.num_cached_tokens = row.prefill_stats.num_cached_tokens
        trace = state.trace
        if trace is not None and trace.t_first_token is None and row.new_token_ids:
            trace.t_first_token = now_ns()

    def _end_answer(self, state: RequestState, finish_reason: FinishReason, stop_reason: int | str | None) -> None:
        if state.session is not None and not state.ends(finish_reason):
            state.session.end_part(state.detokenizer.num_tokens, finish_reason, stop_reason)
        else:
            self._forget(state, finish_reason, stop_reason)

    def _forget(self, state: RequestState, finish_reason: FinishReason | None, stop_reason: int | str | None) -> None:
        """Drop the request from every map."""
        _note_end(state, finish_reason, stop_reason)
        del self.request_states[state.request_id]
        if state.is_prefilling:
            self._num_queued_tokens -= state.num_new_prompt_tokens
        if state.session is not None:
            state.session.end()
        internal_ids = self.external_req_ids[state.external_req_id]
        internal_ids.remove(state.request_id)
        if not internal_ids:
            del self.external_req_ids[state.external_req_id]
        parent = state.parent_req
        if parent is not None:
            parent.child_requests.discard(state.request_id)
            if not parent.child_requests:
                self.parent_requests.pop(parent.request_id, None)


def _count_end(row: EngineCoreOutput, state: RequestState, iteration_stats: IterationStats) -> None:
    """The request ended with this row; without a reason from the engine core a stop string ended it."""
    stats, params, parent = state.stats, state.sampling_params, state.parent_req
    if stats is None:
        return
    iteration_stats.update_from_finished_request(
        FinishReason.STOP if row.finish_reason is None else row.finish_reason,
        state.external_req_id,
        stats,
        num_prompt_tokens=state.num_new_prompt_tokens,
        max_tokens_param=None if params is None else params.max_tokens,
        num_cached_tokens=state.num_cached_tokens,
    )
    longest = stats.num_generation_tokens
    if parent is not None:
        longest = parent.max_num_generation_tokens = max(longest, parent.max_num_generation_tokens)
    if parent is None or not parent.child_requests:
        iteration_stats.max_num_generation_tokens_iter.append(longest)
        iteration_stats.n_params_iter.append(1 if parent is None else parent.n)


def _aborted(state: RequestState) -> RequestOutput | PoolingRequestOutput | None:
    return state.make_pooling_output(None) if state.pooling else state.make_request_output([], FinishReason.ABORT, None)


def _note_end(state: RequestState, finish_reason: FinishReason | None, stop_reason: int | str | None) -> None:
    """Add a request's figures to its trace, where it has one, whose Close comes when the caller is done."""
    trace = state.trace
    if trace is None:
        return
    trace.num_output_tokens += state.detokenizer.num_tokens
    trace.num_cached_tokens = max(trace.num_cached_tokens, state.num_cached_tokens)
    if finish_reason is not None:
        trace.finish_reasons.append(str(finish_reason))
        if finish_reason is FinishReason.ERROR:
            trace.error_message = str(stop_reason)
        else:
            trace.stop_reason = stop_reason
