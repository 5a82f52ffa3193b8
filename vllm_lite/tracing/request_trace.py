"""What a traced request carries through the front end: its ids and its counts.

Process: front end. Knows: numbers. Does not know: collectors, detokenizers or spools; whoever holds it counts into it and
writes the records. A request that is not traced has None in its place, so that the cost of not tracing is one `is None`.
Mirrors: nothing in vLLM.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from vllm_lite.tracing.context import SpanContext, child_headers


class Mailbox(Protocol):
    """Where the letters of a request are counted, one by one.

    It always holds: puts == takes + staples + left, where `left` is what lay in the slot at the close or was replaced by an
    error: counted there, so that the sum can be checked. Letters kept back (FINAL_ONLY, stream_interval, n > 1) are no puts.
    """

    puts: int
    staples: int
    takes: int
    left: int
    kept_back: int


@dataclass(slots=True, eq=False)
class RequestTrace:
    """One for each sampled request, n > 1 included: its samples share it, as they share the mailbox.

    `req` numbers it in this process's spools, from 1; 0 in `Sort.reqs` stands for a letter of a request that is not traced.
    `mailbox` is weak: None once its reader has forgotten it.
    """

    req: int
    trace_id: str
    span_id: str  # the request's root span
    level: int  # the lowest since it was accepted
    several: bool = False  # it asked for several answers
    mailbox: Callable[[], Mailbox | None] = lambda: None
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0  # of all samples, as the caller gets them (cut at a stop string)
    num_cached_tokens: int = 0
    t_first_token: int | None = None  # monotonic ns
    finish_reasons: list[str] = field(default_factory=list)  # one for each sample that has ended
    stop_reason: str | int | None = None
    error_message: str | None = None  # why a sample ended with reason "error"
    left_tokens: int = -1  # new to the caller, in what lies in the slot at the close; -1 where nobody looked
    closed: bool = False  # set by whoever writes the Close record, so that there is exactly one

    @property
    def context(self) -> SpanContext:
        """Its root span."""
        return SpanContext(self.trace_id, self.span_id, sampled=True)

    def traceparent(self, span_id: str) -> str:
        """The header that makes `span_id`, a span of this request, the receiver's parent."""
        return SpanContext(self.trace_id, span_id, sampled=True).traceparent()

    def headers(self, original: Mapping[str, str] | None, span_id: str) -> dict[str, str]:
        """The caller's headers with traceparent replaced by `span_id`'s; tracestate and baggage as they were."""
        return child_headers(original, SpanContext(self.trace_id, span_id, sampled=True))
