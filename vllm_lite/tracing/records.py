"""What a recorder writes: one struct for each kind of event, each with one call site and one station.

Process: all. Knows: field order (appended only; a reader fills what is missing) and units: times are monotonic nanoseconds,
trace ids 32 and span ids 16 lower-case hex digits. Does not know: files, spans or engine classes.
`req` is a number that stands for a request in one process's spools and is never reused; internal ids join the processes.
Mirrors: nothing in vLLM.
"""

import functools
from collections.abc import Sequence
from typing import ClassVar

import msgspec

AttributeValue = str | bool | int | float | Sequence[str | int | float]
Error = tuple[str, str]  # type and message
PUT, STAPLED, KEPT_BACK = "p", "s", "k"  # a letter's fate, one character each in Sort.fates


class Record(msgspec.Struct, array_like=True, gc=False, omit_defaults=True):
    """Base of all kinds. `STATION` is a code of `stations.STATIONS`, or "" for a process's own life."""

    STATION: ClassVar[str] = ""

    @property
    def newest(self) -> int:
        """The latest monotonic time in this record, 0 where it has none."""
        value: int | list[int] = getattr(self, _clock(type(self)), 0)
        return value if isinstance(value, int) else value[-1]


@functools.cache
def _clock(kind: type[Record]) -> str:  # whichever of these it has first is its newest
    return next((name for name in ("t_done", "t3", "t2", "t1", "ts", "t") if name in kind.__struct_fields__), "")


# ---- front end ------------------------------------------------------------------------------------------------------------


class Accept(Record, tag=1):
    """A sampled request entered generate(), encode() or add_request()."""

    STATION = "S1"
    req: int
    external_id: str
    t: int
    trace_id: str
    span_id: str  # the request's root span
    parent_span_id: str | None
    tracestate: str | None
    operation: str  # gen_ai.operation.name: "text_completion" or "embeddings"
    model: str
    attributes: dict[str, AttributeValue]  # gen_ai.request.*
    level: int


class Tokenise(Record, tag=2):
    """The prompt became token ids and passed the checks."""

    STATION = "S2"
    req: int
    t0: int
    t1: int
    num_prompt_tokens: int


class Post(Record, tag=3):
    """An EngineCoreRequest was encoded (from t0) and handed to the socket (t1). One for each of n."""

    STATION = "S3"
    req: int
    internal_id: str
    t0: int
    t1: int
    span_id: str  # parent of the engine core's span
    body_size: int
    sample: int = 0
    engine_index: int = 0
    choice: str = ""  # among several engine cores, why this one: "asked" or "least_busy"
    scores: Sequence[float] = ()  # and how busy each was


class Sort(Record, tag=4):
    """One bag, from the socket to the last mailbox.

    Constant size at level 1. From level 2 `reqs`, `tokens` and `fates` have one entry for each letter that somebody waits for,
    in bag order (req 0: the request is not traced). `tokens`: new ones of each row, whatever its fate, cut at a stop string.
    """

    STATION = "S8"
    bag: int  # counted from 0 by this front end, of those it records
    engine_index: int
    trace: str | None  # traceparent of the core's send span, None where the step was not sampled
    t_received: int
    t_decoded: int
    slices: list[tuple[int, int, int]]  # (t0, t1, size)
    t_done: int
    body_size: int
    num_outputs: int
    num_tokens: int
    num_put: int
    num_stapled: int
    num_kept_back: int
    late: list[tuple[str, int]]  # (internal id, tokens)
    reqs: list[int] = []
    tokens: list[int] = []
    fates: str = ""
    gone: list[int] = []  # how many were late in each slice, where any was


class Takes(Record, tag=5):
    """Letters taken since the last flush, as columns (level 2 and up). What they brought follows from the Sorts before."""

    STATION = "S9"
    reqs: list[int]
    ts: list[int]
    tokens: list[int] = []  # of a request with several answers, which keep letters back each for itself


class Abort(Record, tag=6):
    """The front end gave a request up and told the engine core (t: handed to the socket)."""

    STATION = "S9"
    req: int
    t: int
    reason: str  # client_disconnect | stop_string | api | shutdown
    span_id: str
    internal_ids: list[str]


class Close(Record, tag=7):
    """The request's one end, whichever it was; its root span ends here."""

    STATION = "S9"
    req: int
    t: int
    outcome: str  # finished | aborted | rejected | invalid | engine_dead | error
    finish_reasons: list[str]
    stop_reason: str | int | None
    error_type: str | None
    error_message: str | None
    puts: int
    staples: int
    takes: int
    left: int
    kept_back: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    t_first_token: int | None
    left_tokens: int = -1  # those `left` that the caller did not have; -1 where the writer does not say
    level: int = 3  # the lowest since Accept; single letters may be missing where it was lowered


class Call(Record, tag=8):
    """A method of an engine core was called (t0), and the call ended somehow (t1). It is a trace of its own."""

    call_id: int
    method: str
    engine_index: int
    t0: int
    t1: int
    trace_id: str
    span_id: str
    error: Error | None  # what the caller got instead of a result


class Farewell(Record, tag=9):
    """The last output of an aborted request was put into its mailbox; it came in no bag. It brings what was kept back."""

    STATION = "S9"
    req: int
    t: int
    fate: str


# ---- engine core ----------------------------------------------------------------------------------------------------------


class Receive(Record, tag=20):
    """The input thread got an ADD (t0), decoded and queued it (t1)."""

    STATION = "S4"
    req: int
    internal_id: str
    t0: int
    t1: int
    trace_id: str
    parent_span_id: str
    span_id: str  # the request's whole stay in the core
    body_size: int


class ReceiveAbort(Record, tag=21):
    """The input thread got an ABORT. `headers` are the senders' traceparents by internal id."""

    STATION = "S4"
    internal_ids: list[str]
    reason: str
    t: int
    headers: dict[str, str]


class Schedule(Record, tag=22):
    """Scheduler.schedule() ran from t0 to t1. Columns: sampled requests in the step and the tokens granted to each."""

    STATION = "S5"
    step: int
    t0: int
    t1: int
    trace_id: str
    span_id: str  # engine_core.step
    reqs: list[int]
    tokens: list[int]
    prefills: list[int]  # those of `reqs` that still compute their prompt
    new: list[tuple[int, int]]  # (req, cached tokens) of those scheduled for the first time or again
    preempted: list[int]
    num_requests: int
    num_prefill: int
    num_tokens: int
    num_running: int
    num_waiting: int
    kv_usage: float
    num_evicted: int = 0  # since the last recorded step: cached blocks that were forgotten to make room,
    num_refused: int = 0  # and how often blocks could not be had
    refused: Sequence[tuple[int, int]] = ()  # those of `new` that this had befallen before, and how often


class Execute(Record, tag=23):
    """The executor ran the step: execute_model called (t0), tokens back (t1)."""

    STATION = "S6"
    step: int
    t0: int
    t1: int
    span_id: str  # parent of the worker's span


class Update(Record, tag=24):
    """update_from_output ran from t0 to t1. A `step` of -1 is one that is not recorded."""

    STATION = "S7"
    step: int
    t0: int
    t1: int
    finished: list[tuple[int, str]]  # (req, finish reason) of sampled requests that ended here
    num_bags: int = -1  # that go out, one for each client with outputs; -1: not told
    stale: Sequence[tuple[str, int]] = ()  # tokens made for requests that were gone by then, by internal id


class Send(Record, tag=25):
    """The output thread took a bag from its queue (t0), encoded (t1) and sent it (t2)."""

    STATION = "S7"
    trace_id: str
    parent_span_id: str  # the step's span
    span_id: str
    t_queued: int
    t0: int
    t1: int
    t2: int
    client_index: int
    num_outputs: int
    body_size: int


class Leave(Record, tag=26):
    """A request left the core outside a step: aborted in whatever state, or failed."""

    STATION = "S5"
    req: int
    t: int
    reason: str
    status: str  # what it was doing: waiting | running | preempted


class Serve(Record, tag=27):
    """The engine core received a Call (t_received), began it (t0) and answered (t1)."""

    call_id: int
    client_index: int
    method: str
    trace_id: str
    parent_span_id: str
    span_id: str
    t_received: int
    t0: int
    t1: int
    error: Error | None


# ---- worker ---------------------------------------------------------------------------------------------------------------


class Work(Record, tag=40):
    """The worker's own view of a step: inputs prepared (t1), forward pass done (t2), tokens sampled (t3)."""

    STATION = "S6"
    step: int
    trace_id: str
    parent_span_id: str
    span_id: str
    t0: int
    t1: int
    t2: int
    t3: int
    device_ns: int | None
    rank: int


# ---- every process --------------------------------------------------------------------------------------------------------


class Phase(Record, tag=60):
    """A stretch of a process's own life: "load_weights", "handshake", "shutdown", ... `error` ended it."""

    name: str
    t0: int
    t1: int
    error: Error | None = None


class EngineDead(Record, tag=61):
    """The front end learned that engine `engine_index` is dead, and what is known of its end."""

    engine_index: int
    t: int
    reason: str = ""


class Dropped(Record, tag=62):
    """Records that could not be kept, and why."""

    count: int
    reason: str


class Bye(Record, tag=63):
    """The writer ended in order; nothing follows in this spool."""

    t: int


AnyRecord = (
    Accept | Tokenise | Post | Sort | Takes | Abort | Close | Call | Farewell
    | Receive | ReceiveAbort | Schedule | Execute | Update | Send | Leave | Serve | Work
    | Phase | EngineDead | Dropped | Bye
)  # fmt: skip
