"""The letters between the front end and the engine core.

Process: both. Knows: field order and types; golden bytes in tests hold them. Does not know: what either side does with them.
All are array-like msgpack: a decoder fills missing trailing fields with their defaults, so new fields are appended last.
Mirrors: vllm/v1/engine/__init__.py
"""

import enum
import time
from typing import Any

import msgspec

from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.stats import PrefillStats, SchedulerStats
from vllm_lite.wire.step import LogprobsLists

PROTOCOL_VERSION = 4
ENGINE_CORE_DEAD = b"ENGINE_CORE_DEAD"  # the first of two frames on the output socket, the core's last word; then its index
DEFAULT_WEIGHT_VERSION = "default"  # of weights that nobody has named
FINISH_REASON_STRINGS = ("stop", "length", "abort", "error", "repetition")


class FinishReason(enum.IntEnum):
    """Why an answer ended. ERROR is the request's own failure, never the caller's wish."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4

    def __str__(self) -> str:
        return FINISH_REASON_STRINGS[self.value]


class EngineCoreRequestType(enum.Enum):
    """First byte of each message to the engine core. EXECUTOR_FAILED, WAKEUP and CLIENT_GONE never leave the process."""

    ADD = b"\x00"
    ABORT = b"\x01"
    UTILITY = b"\x03"
    EXECUTOR_FAILED = b"\x04"
    WAKEUP = b"\x05"
    PING = b"\x06"  # ours: answered by the input thread itself, so that health means a living process
    CLIENT_GONE = b"\x07"  # ours: a front end's connection is closed; its requests are given up


class EngineCoreRequest(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """One request, as posted. `trace_headers` travels here once and never rides back.

    A `resumable` request is a session: its prompt comes in parts, each answered by itself. Later parts carry the same id and
    `continues`; an ABORT ends it.
    """

    request_id: str
    prompt_token_ids: list[int] | None
    mm_features: None
    sampling_params: SamplingParams | None
    pooling_params: PoolingParams | None
    arrival_time: float
    lora_request: None = None
    cache_salt: str | None = None
    data_parallel_rank: int | None = None
    prompt_embeds: None = None
    client_index: int = 0
    current_wave: int = 0
    priority: int = 0
    trace_headers: dict[str, str] | None = None
    resumable: bool = False
    external_req_id: str | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: dict[str, Any] | None = None
    session_id: str | None = None
    kv_hints: dict[str, Any] | None = None
    continues: bool = False  # ours: a later part, of no use where its session has ended meanwhile

    @property
    def params(self) -> SamplingParams | PoolingParams:
        """Whichever of the two kinds of parameters this request carries."""
        params = self.sampling_params if self.sampling_params is not None else self.pooling_params
        assert params is not None
        return params


class EngineCoreAbort(msgspec.Struct, array_like=True, gc=False):
    """Requests (by internal id) to be given up. `trace_headers` continue the trace of the sender's abort spans, by id.

    `reason`: "client_disconnect", "stop_string", "api" or "shutdown".
    """

    request_ids: list[str]
    reason: str = "api"
    trace_headers: dict[str, str] = {}


class EngineCoreEventType(enum.IntEnum):
    """A request's milestones in the scheduler."""

    QUEUED = 1
    SCHEDULED = 2
    PREEMPTED = 3


class EngineCoreEvent(msgspec.Struct, array_like=True, gc=False):
    """A milestone with its time: engine core's monotonic clock, in seconds."""

    type: EngineCoreEventType
    timestamp: float


class EngineCoreOutput(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """One request's row in a bag."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: LogprobsLists | None = None
    new_prompt_logprobs_tensors: LogprobsLists | None = None
    pooling_output: Any = None  # numpy float32 [hidden_size]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    events: list[EngineCoreEvent] | None = None
    prefill_stats: PrefillStats | None = None
    error: str | None = None  # ours: why finish_reason is ERROR


class UtilityOutput(msgspec.Struct, array_like=True, gc=False):
    """The answer to a utility call. A `failure_message` that is not None means the call failed."""

    call_id: int
    failure_message: str | None = None
    result: Any = None


class EngineCoreOutputs(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """The bag: what one step made for one client. `step_trace` is the W3C traceparent of the span that sent it.

    `weight_version` names the weights that made its tokens; None while nobody has named any.

    `timestamp` is the engine core's monotonic clock in seconds, set at construction where it is not given. With
    `scheduler_stats` alone also what an engine core tells the coordinator, and the coordinator every front end.
    """

    engine_index: int = 0
    outputs: list[EngineCoreOutput] = []
    scheduler_stats: SchedulerStats | None = None
    timestamp: float = 0.0
    utility_output: UtilityOutput | None = None
    finished_requests: set[str] | None = None
    weight_version: str | None = None
    step_trace: str | None = None
    pong: int | None = None  # ours: the number of the PING this answers

    def __post_init__(self) -> None:
        if self.timestamp == 0.0:
            self.timestamp = time.monotonic()


class EngineHello(msgspec.Struct, array_like=True):
    """First word of a starting engine core, on the handshake socket."""

    protocol_version: int
    pid: int
    engine_index: int


class EngineInit(msgspec.Struct, array_like=True):
    """The launcher's answer to HELLO: where to connect for each front end, by client index, and the whole configuration as
    msgpack (a VllmConfig). `coordinator_address` None: nobody coordinates."""

    input_addresses: list[str]
    output_addresses: list[str]
    vllm_config: bytes
    coordinator_address: str | None = None


class EngineCoreReadyResponse(msgspec.Struct, array_like=True):
    """READY: what only the engine core knows once its worker stands. Its second word on the handshake socket, and its first
    on every input socket, because a ROUTER drops messages to an identity it has not heard from."""

    protocol_version: int
    engine_index: int
    pid: int
    max_model_len: int
    num_gpu_blocks: int
    block_size: int
    dtype: str
    device: str
    vocab_size: int
    executor: str
    max_concurrent_batches: int = 1
    kv_cache_bytes: int = 0
    weights_bytes: int = 0
    attention_backend: str = ""
    load_seconds: float = 0.0
    supported_tasks: list[str] = []  # what requests may ask for: "generate", "embed"


class EngineStartFailed(msgspec.Struct, array_like=True):
    """A starting engine core's second and last word on the handshake socket where it cannot come up.

    `error_type` is the exception's class name; the front end raises a class of `vllm_lite.exceptions` of that name (else
    EngineStartError) with `message`.
    """

    error_type: str
    message: str
