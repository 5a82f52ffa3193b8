"""A request as the scheduler sees it: token ids, how far they are computed, and where it stands.

Process: engine core; built by the input thread, then used by the main thread only. Knows: ids, counts, parameters. Does not
know: text, blocks (the KV cache manager has them), or who waits for the answer.
Mirrors: vllm/v1/request.py
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field

import numpy as np

from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.messages import EngineCoreEvent, EngineCoreEventType, EngineCoreRequest, FinishReason
from vllm_lite.wire.stats import PrefillStats
from vllm_lite.wire.step import LogprobsLists

BlockHasher = Callable[["Request"], list[bytes]]

NEVER = 1 << 62  # a step, or a length, that is not reached


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


@dataclass(slots=True, eq=False)
class Request:
    """One request's life in the scheduler."""

    request_id: str
    prompt_token_ids: InitVar[list[int]]
    sampling_params: SamplingParams | None
    pooling_params: PoolingParams | None
    client_index: int = 0
    arrival_time: float = field(default_factory=time.time)
    cache_salt: str | None = None
    priority: int = 0
    resumable: bool = False
    continues: bool = False
    block_hasher: BlockHasher | None = None

    all_token_ids: list[int] = field(init=False)  # the prompt and the answer so far; shrinks in `take_part` alone
    block_hashes: list[bytes] = field(default_factory=list)
    num_tokens: int = field(init=False)
    num_prompt_tokens: int = field(init=False)
    max_tokens: int = field(init=False)
    sort_key: tuple[int, float, str] = field(init=False)
    status: RequestStatus = RequestStatus.WAITING
    stop_reason: int | str | None = None
    num_computed_tokens: int = 0  # those that are computed, or in a step that is being computed
    num_output_placeholders: int = 0  # tokens that such steps are about to add to the answer
    first_step: int = NEVER  # the step that admitted it last
    num_cached_tokens: int = -1  # until the first look-up in the prefix cache
    num_preemptions: int = 0
    num_refused: int = 0  # how often blocks could not be had
    skip_reading_prefix_cache: bool = field(init=False)  # each prompt position must be computed
    events: list[EngineCoreEvent] = field(default_factory=list)  # for the next output
    prefill_stats: PrefillStats | None = None  # waits here for the first output
    prompt_logprobs: list[LogprobsLists] | None = None  # those of the chunks so far; None where unwanted or delivered
    trace: int | None = None  # its number in this process's spools, where it is traced

    def __post_init__(self, prompt_token_ids: list[int]) -> None:
        self.all_token_ids = list(prompt_token_ids)
        self.num_tokens = self.num_prompt_tokens = len(prompt_token_ids)
        self.sort_key = (self.priority, self.arrival_time, self.request_id)
        if self.sampling_params is not None:
            self.max_tokens = NEVER if self.sampling_params.max_tokens is None else self.sampling_params.max_tokens
            self.skip_reading_prefix_cache = self.sampling_params.prompt_logprobs is not None
            self.prompt_logprobs = [] if self.skip_reading_prefix_cache else None
        else:
            assert self.pooling_params is not None
            self.max_tokens = 1
            self.skip_reading_prefix_cache = self.pooling_params.pooling_type != "last"
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
        if self.block_hasher is not None:
            self.block_hashes.extend(self.block_hasher(self))

    def record_event(self, event_type: EngineCoreEventType) -> None:
        """Note a milestone; it rides with the next output."""
        self.events.append(EngineCoreEvent(event_type, time.monotonic()))

    def add_prompt_logprobs(self, chunk: LogprobsLists) -> None:
        """Keep those of one more chunk of the prompt until the first output; a later recomputation adds nothing."""
        if self.prompt_logprobs is not None:
            self.prompt_logprobs.append(chunk)

    def take_prompt_logprobs(self) -> LogprobsLists | None:
        """Those of the whole prompt, once; None where they are not wanted or were taken before."""
        chunks, self.prompt_logprobs = self.prompt_logprobs, None
        if not chunks:
            return None
        columns = zip(*((c.logprob_token_ids, c.logprobs, c.sampled_token_ranks) for c in chunks), strict=True)
        return LogprobsLists(*(np.concatenate(column) for column in columns))

    def reset_computed_tokens(self) -> None:
        """Preempted: everything known is to be computed again."""
        self.num_computed_tokens = 0
        self.num_preemptions += 1
        if self.prompt_logprobs is not None:
            self.prompt_logprobs.clear()

    def is_finished(self) -> bool:
        """True after its end, whichever it was."""
        return self.status > RequestStatus.PREEMPTED

    def get_finished_reason(self) -> FinishReason | None:
        """What the caller is told, None while it runs."""
        return _FINISH_REASONS.get(self.status)
