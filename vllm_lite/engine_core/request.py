"""A request as the scheduler sees it: token ids, how far they are computed, and where it stands.

Process: engine core; built by the input thread, then used by the main thread only. Knows: ids, counts, parameters. Does not
know: text, blocks (the KV cache manager has them), or who waits for the answer.
Mirrors: vllm/v1/request.py
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable

import numpy as np

from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.messages import EngineCoreEvent, EngineCoreEventType, EngineCoreRequest, FinishReason
from vllm_lite.wire.stats import PrefillStats
from vllm_lite.wire.step import LogprobsLists

BlockHasher = Callable[["Request"], list[bytes]]

NEVER = 1 << 62  # a step that does not come


class RequestStatus(enum.IntEnum):
    """Where a request stands; everything after PREEMPTED is an end."""

    WAITING = enum.auto()
    WAITING_FOR_STREAMING_REQ = enum.auto()  # a session whose next part has not come
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    FINISHED_STOPPED = enum.auto()
    FINISHED_LENGTH_CAPPED = enum.auto()
    FINISHED_ABORTED = enum.auto()
    FINISHED_ERROR = enum.auto()


_FINISH_REASONS = {
    RequestStatus.FINISHED_STOPPED: FinishReason.STOP,
    RequestStatus.FINISHED_LENGTH_CAPPED: FinishReason.LENGTH,
    RequestStatus.FINISHED_ABORTED: FinishReason.ABORT,
    RequestStatus.FINISHED_ERROR: FinishReason.ERROR,
}


class Request:
    """One request's life in the scheduler.

    `all_token_ids` is the prompt and the answer so far; where it shrinks (`take_part`), block hashes go with it.
    `num_computed_tokens` counts tokens that are computed or in a step being computed, `num_output_placeholders` the tokens that
    such steps are about to add to the answer. `first_step` is the step that admitted it last. `num_cached_tokens` is -1 until
    the first look-up in the prefix cache. `trace` is the request's number in this process's spools, None where it is not
    traced.
    Smaller sorts first: by priority, then by arrival.
    """

    __slots__ = (
        "_block_hasher",
        "_prompt_logprobs",
        "all_token_ids",
        "arrival_time",
        "block_hashes",
        "cache_salt",
        "client_index",
        "continues",
        "events",
        "first_step",
        "max_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_output_placeholders",
        "num_preemptions",
        "num_prompt_tokens",
        "num_refused",
        "num_tokens",
        "pooling_params",
        "prefill_stats",
        "priority",
        "request_id",
        "resumable",
        "sampling_params",
        "skip_reading_prefix_cache",
        "sort_key",
        "status",
        "stop_reason",
        "trace",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        sampling_params: SamplingParams | None,
        pooling_params: PoolingParams | None,
        *,
        client_index: int = 0,
        arrival_time: float | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        resumable: bool = False,
        continues: bool = False,
        block_hasher: BlockHasher | None = None,
    ) -> None:
        self.request_id = request_id
        self.client_index = client_index
        self.priority = priority
        self.arrival_time = time.time() if arrival_time is None else arrival_time
        self.sort_key = (priority, self.arrival_time, request_id)
        self.sampling_params = sampling_params
        self.pooling_params = pooling_params
        self.resumable = resumable
        self.continues = continues
        self.cache_salt = cache_salt
        self.all_token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = self.num_tokens = len(prompt_token_ids)
        max_tokens = sampling_params.max_tokens if sampling_params is not None else 1
        self.max_tokens = max_tokens if max_tokens is not None else 1 << 62  # None: what the model's length leaves
        self.skip_reading_prefix_cache = _needs_whole_prompt(sampling_params, pooling_params)
        self.status = RequestStatus.WAITING
        self.stop_reason: int | str | None = None
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0
        self.first_step = NEVER
        self.num_cached_tokens = -1
        self.num_preemptions = 0
        self.num_refused = 0  # how often blocks could not be had
        self.events: list[EngineCoreEvent] = []
        self.prefill_stats: PrefillStats | None = None  # waits here for the first output
        self.trace: int | None = None
        wanted = sampling_params is not None and sampling_params.prompt_logprobs is not None
        self._prompt_logprobs: list[LogprobsLists] | None = [] if wanted else None  # None also once they were delivered
        self._block_hasher = block_hasher
        self.block_hashes: list[bytes] = []
        self.update_block_hashes()

    @classmethod
    def from_engine_core_request(cls, request: EngineCoreRequest, block_hasher: BlockHasher | None) -> Request:
        """The request that a letter from the front end asks for; the prompt's block hashes are computed here."""
        assert request.prompt_token_ids is not None
        return cls(
            request.request_id,
            request.prompt_token_ids,
            request.sampling_params,
            request.pooling_params,
            client_index=request.client_index,
            arrival_time=request.arrival_time,
            cache_salt=request.cache_salt,
            priority=request.priority,
            resumable=request.resumable,
            continues=request.continues,
            block_hasher=block_hasher,
        )

    def __lt__(self, other: Request) -> bool:
        return self.sort_key < other.sort_key

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the answer so far."""
        return self.num_tokens - self.num_prompt_tokens

    def append_output_token_ids(self, token_id: int) -> None:
        """Add one token to the answer."""
        self.all_token_ids.append(token_id)
        self.num_tokens += 1

    def take_part(self, part: Request, block_size: int) -> None:
        """Go on with a session's next part behind the answer so far, but for its last token, which was never computed."""
        kept = self.num_tokens - 1
        del self.all_token_ids[kept:], self.block_hashes[kept // block_size :]
        self.all_token_ids += part.all_token_ids
        self.num_prompt_tokens = self.num_tokens = len(self.all_token_ids)
        self.sampling_params, self.max_tokens = part.sampling_params, part.max_tokens
        self.arrival_time, self.sort_key, self.trace = part.arrival_time, part.sort_key, part.trace
        self.status, self.stop_reason = RequestStatus.WAITING, None
        self.num_computed_tokens = self.num_preemptions = 0

    def update_block_hashes(self) -> None:
        """Hash the full blocks that have none yet; needed before the newest ones are cached or looked up."""
        if self._block_hasher is not None:
            self.block_hashes.extend(self._block_hasher(self))

    def record_event(self, event_type: EngineCoreEventType, timestamp: float | None = None) -> None:
        """Note a milestone; it rides with the next output."""
        self.events.append(EngineCoreEvent.new_event(event_type, timestamp))

    def take_events(self) -> list[EngineCoreEvent] | None:
        """The milestones since the last output; None where there are none."""
        if not self.events:
            return None
        events, self.events = self.events, []
        return events

    def add_prompt_logprobs(self, chunk: LogprobsLists) -> None:
        """Keep those of one more chunk of the prompt until the first output; a later recomputation adds nothing."""
        if self._prompt_logprobs is not None:
            self._prompt_logprobs.append(chunk)

    def take_prompt_logprobs(self) -> LogprobsLists | None:
        """Those of the whole prompt, once; None where they are not wanted or were taken before."""
        chunks, self._prompt_logprobs = self._prompt_logprobs, None
        if not chunks:
            return None
        columns = zip(*((c.logprob_token_ids, c.logprobs, c.sampled_token_ranks) for c in chunks), strict=True)
        return LogprobsLists(*(np.concatenate(column) for column in columns))

    def reset_computed_tokens(self) -> None:
        """Preempted: everything known is to be computed again."""
        self.num_computed_tokens = 0
        self.num_preemptions += 1
        if self._prompt_logprobs is not None:
            self._prompt_logprobs.clear()

    def is_finished(self) -> bool:
        """True after its end, whichever it was."""
        return self.status > RequestStatus.PREEMPTED

    def get_finished_reason(self) -> FinishReason | None:
        """What the caller is told, None while it runs."""
        return _FINISH_REASONS.get(self.status)


def _needs_whole_prompt(sampling_params: SamplingParams | None, pooling_params: PoolingParams | None) -> bool:
    """True where each prompt position must be computed, so that cached blocks cannot stand in for it."""
    if pooling_params is not None:
        return pooling_params.pooling_type != "last"
    return sampling_params is not None and sampling_params.prompt_logprobs is not None
