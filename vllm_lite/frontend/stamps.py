"""The front end's stamps on its letters: one method for each kind of record, called where the thing happens.

Process: front end, on the event loop. Knows: the recorder, the sampler, the requests that are being traced. Does not know:
collectors or sockets; it is told ids, counts and times. Who holds no Stamps traces nothing.
Mirrors: nothing in vLLM, whose OutputProcessor makes one span when a request has finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from vllm_lite.exceptions import EngineDeadError
from vllm_lite.frontend.core_client.client import Bag, Posted
from vllm_lite.frontend.trace_facts import asked, ending
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.tracing.context import SpanContext, child_headers, header, new_span_id, parent_of
from vllm_lite.tracing.log import logged_as
from vllm_lite.tracing.recorder import Recorder, described, now_ns, writable
from vllm_lite.tracing.records import (
    KEPT_BACK,
    PUT,
    STAPLED,
    Abort,
    Accept,
    Call,
    Close,
    EngineDead,
    Farewell,
    Post,
    Sort,
    Tokenise,
)
from vllm_lite.tracing.request_trace import Mailbox, RequestTrace
from vllm_lite.tracing.sampler import Sampler
from vllm_lite.wire.messages import EngineCoreOutput, EngineCoreOutputs

TOKEN_LEVEL = 2  # from here on tokens and mailboxes are recorded one by one


class Stamps:
    """Writes the front end's records. `model` is the name that spans show."""

    def __init__(self, run_dir: Path, model: str) -> None:
        self._recorder = Recorder(run_dir, "frontend", "loop")
        self._sampler = Sampler()
        self._recorder.sample_life(self._sampler.decide(None, "engine.start").sampled)
        self.phase = self._recorder.phase
        self.take = self._recorder.take  # S9: a caller took a letter; no call of our own between, for there is one per token
        self._model = writable(model)
        self._closed = False
        self._level = self._recorder.level  # as it was when last looked at
        self._num_requests = 0
        self._num_bags = 0
        self._open: dict[int, tuple[RequestTrace, list[str]]] = {}  # with the internal ids posted so far
        self._posted: dict[str, RequestTrace] = {}

    @property
    def level(self) -> int:
        """The level in force now, 0 where tracing is off. Of requests on their way less is recorded once it is lowered."""
        level = 0 if self._closed else self._recorder.refresh()
        if level < self._level:
            for trace, _ in self._open.values():
                trace.level = min(trace.level, level)
        self._level = level
        return level

    # ---- a request's way in ------------------------------------------------------------------------------------------------

    def accept(
        self, external_id: object, params: SamplingParams | PoolingParams, trace_headers: Mapping[str, str] | None
    ) -> RequestTrace | None:
        """S1: the sampling decision. None: not traced."""
        t = now_ns()
        level = self.level
        if not level:
            return None
        operation = "embeddings" if isinstance(params, PoolingParams) else "text_completion"
        tracestate, attributes = header(trace_headers, "tracestate"), asked(params)
        trace_id, parent_span_id, sampled = self._sampler.decide(trace_headers, f"{operation} {self._model}")
        if not sampled or not self._recorder.admit():
            return None
        self._num_requests += 1
        several = isinstance(params, SamplingParams) and params.n != 1
        trace = RequestTrace(self._num_requests, trace_id, new_span_id(), level, several)
        self._open[trace.req] = (trace, [])
        self._recorder.append(
            Accept(
                req=trace.req,
                external_id=writable(str(external_id)),
                t=t,
                trace_id=trace_id,
                span_id=trace.span_id,
                parent_span_id=parent_span_id,
                tracestate=None if tracestate is None else writable(tracestate),
                operation=operation,
                model=self._model,
                attributes=attributes,
                level=level,
            )
        )
        self._recorder.flush()
        return trace

    @contextmanager
    def entering(self, trace: RequestTrace | None) -> Iterator[None]:
        """Around a request's way in: log lines name its span, an error is its end."""
        if trace is None:
            yield
            return
        try:
            with logged_as(trace.context):
                yield
        except BaseException as error:
            self.close_request(trace, error, trace.mailbox())  # letters may have come to it before the last sample was sent
            raise

    def tokenise(self, trace: RequestTrace, t0: int, num_prompt_tokens: int) -> None:
        """S2: the prompt is token ids, and was checked."""
        trace.num_prompt_tokens += num_prompt_tokens
        self._recorder.append(Tokenise(trace.req, t0, now_ns(), num_prompt_tokens))

    def post(self, trace: RequestTrace, internal_id: str, *, t0: int, span_id: str, sample: int, posted: Posted) -> None:
        """S3: the request was handed to the socket."""
        if trace.closed:  # the engine was shut down meanwhile
            return
        if internal_id not in self._posted:  # else a later part of a session
            self._posted[internal_id] = trace
            self._open[trace.req][1].append(internal_id)
        engine, size, choice, scores = posted
        self._recorder.append(Post(trace.req, internal_id, t0, now_ns(), span_id, size, sample, engine, choice, scores))
        self._recorder.flush()

    # ---- bags --------------------------------------------------------------------------------------------------------------

    def open_bag(self, outputs: EngineCoreOutputs) -> BagStamp | None:
        """A stamp for the bag that is about to be sorted, where it may have to be recorded."""
        level = self.level
        if not level or (outputs.step_trace is None and not self._open):
            return None
        columns = level >= TOKEN_LEVEL
        return BagStamp(by_letter=columns or outputs.step_trace is None, columns=columns)

    def sort(self, stamp: BagStamp, bag: Bag) -> None:
        """S8: the bag is empty. It is written if its step is traced or one of its letters is."""
        outputs, t_received, t_decoded, body_size = bag
        late, reqs = stamp.late, stamp.reqs
        if outputs.step_trace is None and not any(reqs):
            return
        number, self._num_bags = self._num_bags, self._num_bags + 1
        self._recorder.append(
            Sort(
                number,
                outputs.engine_index,
                outputs.step_trace,
                t_received,
                t_decoded,
                stamp.slices,
                now_ns(),
                body_size,
                stamp.num_letters + len(late),
                stamp.num_tokens + sum([count for _, count in late]),
                stamp.num_letters - stamp.num_stapled - stamp.num_kept_back,
                stamp.num_stapled,
                stamp.num_kept_back,
                late,
                *((reqs, stamp.tokens, stamp.fates, stamp.gone if late else []) if stamp.columns else ()),
            )
        )
        self._recorder.flush()

    # ---- mailboxes and ends ------------------------------------------------------------------------------------------------

    def abort(self, internal_ids: Sequence[str], reason: str) -> dict[str, str]:
        """The traced ones of these requests are about to be given up; returns their headers for the ABORT, by internal id."""
        by_trace: dict[int, tuple[RequestTrace, list[str]]] = {}
        for internal_id in internal_ids:
            trace = self._posted.get(internal_id)
            if trace is not None:
                by_trace.setdefault(trace.req, (trace, []))[1].append(internal_id)
        headers = {}
        for trace, ids in by_trace.values():
            span_id = new_span_id()
            self._recorder.append(Abort(trace.req, now_ns(), reason, span_id, ids))
            headers.update(dict.fromkeys(ids, trace.traceparent(span_id)))
        return headers

    def take_of_several(self, req: int, num_tokens: int) -> None:
        """S9: a letter was taken whose request has several answers; `num_tokens` of all of them were new to its caller."""
        self._recorder.note_takes([req], [now_ns()], [num_tokens])

    def farewell(self, trace: RequestTrace, fate: str) -> None:
        """The last output of an aborted request was put into its mailbox, by itself."""
        if trace.level >= TOKEN_LEVEL and not trace.closed:
            self._recorder.append(Farewell(trace.req, now_ns(), fate))

    @contextmanager
    def call(self, method: str, engine_index: int, call_id: int) -> Iterator[str | None]:
        """Around a utility call: gives the traceparent that goes with it, and notes how it ended."""
        trace_id, _, sampled = self._sampler.decide(None, f"engine_core/{method}")
        if not self.level or not sampled:
            yield None
            return
        span_id, t0, error = new_span_id(), now_ns(), None
        try:
            yield SpanContext(trace_id, span_id, sampled).traceparent()
        except BaseException as caught:
            error = caught
            raise
        finally:
            if not self._closed:
                self._recorder.append(Call(call_id, method, engine_index, t0, now_ns(), trace_id, span_id, described(error)))
                self._recorder.flush()

    def engine_dead(self, engine_index: int, reason: str) -> None:
        """The front end has learned that an engine core is dead."""
        if self.level:
            self._recorder.append(EngineDead(engine_index, now_ns(), reason))
            self._recorder.flush()

    def close_request(self, trace: RequestTrace, error: BaseException | None = None, mailbox: Mailbox | None = None) -> None:
        """The request's one end; later calls change nothing. `error` is what its caller gets instead of a last letter."""
        if trace.closed:
            return
        trace.closed = True
        for internal_id in self._open.pop(trace.req)[1]:
            del self._posted[internal_id]
        outcome, error_type, message = ending(trace, error)
        puts, staples, takes, left, kept_back = 0, 0, 0, 0, 0  # where it ended before it had a mailbox
        if mailbox is not None:
            puts, staples, takes = mailbox.puts, mailbox.staples, mailbox.takes
            left, kept_back = mailbox.left, mailbox.kept_back
        self._recorder.append(
            Close(
                req=trace.req,
                t=now_ns(),
                outcome=outcome,
                finish_reasons=trace.finish_reasons,
                stop_reason=trace.stop_reason,
                error_type=error_type,
                error_message=None if message is None else writable(message),
                puts=puts,
                staples=staples,
                takes=takes,
                left=left if trace.left_tokens >= 0 else puts - staples - takes,
                kept_back=kept_back,
                num_prompt_tokens=trace.num_prompt_tokens,
                num_output_tokens=trace.num_output_tokens,
                num_cached_tokens=trace.num_cached_tokens,
                t_first_token=trace.t_first_token,
                left_tokens=trace.left_tokens,
                level=trace.level,
            )
        )
        self._recorder.flush()

    def shutdown(self, t0: int | None = None) -> None:
        """Close what is still open, and the spool. Who still waits for an answer is told that the engine is gone. `t0`: when
        the engine was asked to end."""
        for trace, internal_ids in list(self._open.values()):
            answered = internal_ids and len(trace.finish_reasons) == len(internal_ids)
            self.close_request(trace, None if answered else EngineDeadError("the engine was shut down"), trace.mailbox())
        if not self._closed:
            self._closed = True
            if t0 is not None:
                self.phase("shutdown", t0)
            self._recorder.close()


@dataclass(slots=True)
class BagStamp:
    """What is noted while one bag is sorted.

    Letters that somebody waits for are counted, with `by_letter` each with its request's number (0: not traced), and with
    `columns` each with its tokens and its fate (one of PUT, STAPLED, KEPT_BACK).
    """

    by_letter: bool = True
    columns: bool = True
    reqs: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    fates: str = ""
    late: list[tuple[str, int]] = field(default_factory=list)  # of requests that are gone, or go now: internal id, tokens
    slices: list[tuple[int, int, int]] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)  # how many late ones in each slice
    num_letters: int = 0
    num_tokens: int = 0
    num_stapled: int = 0
    num_kept_back: int = 0

    def note_slice(self, rows: Sequence[EngineCoreOutput], t0: int, gone: set[int], odd: Mapping[int, str], even: bool) -> None:
        """These rows were sorted, from `t0` to now. By identity, `gone` are those that became no letter, `odd` those with
        another fate than PUT. `even`: each brings one token."""
        letters = rows
        if gone:  # they count as well: what was sent was sorted
            letters = [row for row in rows if id(row) not in gone]
            self.late += [(row.request_id, len(row.new_token_ids)) for row in rows if id(row) in gone]
        self.num_letters += len(letters)
        self.num_tokens += len(letters) if even else sum([len(row.new_token_ids) for row in letters])
        if odd:
            fates = list(odd.values())
            self.num_stapled += fates.count(STAPLED)
            self.num_kept_back += fates.count(KEPT_BACK)
        if self.columns:
            self.tokens += [1] * len(letters) if even else [len(row.new_token_ids) for row in letters]
            self.fates += "".join([odd.get(id(row), PUT) for row in letters]) if odd else PUT * len(letters)
        self.slices.append((t0, now_ns(), len(rows)))
        self.gone.append(len(gone))


def unsampled_headers(trace_headers: Mapping[str, str] | None) -> dict[str, str] | None:
    """The headers of a request that is not recorded: as they came, but never saying that it is."""
    if not trace_headers:
        return None
    parent = parent_of(trace_headers)
    if parent is None or not parent.sampled:
        return dict(trace_headers)
    return child_headers(trace_headers, SpanContext(parent.trace_id, parent.span_id, sampled=False))
