"""Puts the records of all processes together: by request number within a process, by internal id and trace id across.

Process: readers. Knows: which record belongs to what. Does not know: files or spans. Records of one spool come in order; those
of different spools may come in any, so whatever refers to something not yet seen waits for it.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.context import parse_traceparent
from vllm_lite.tracing.journey.ends import Ends
from vllm_lite.tracing.journey.model import (
    LATE,
    Bag,
    Letter,
    RequestJourney,
    Share,
    Spell,
    Stay,
    StepJourney,
    Take,
)
from vllm_lite.tracing.process import Process

EARLY = 10_000  # traces that may wait for their step's Schedule record before the oldest is given up
Number = tuple[int, int]  # (id of a Process, request or step number in it)


class Assembler:
    """Feed it records, look into its tables. With `keep`, letters, takes and steps of a request keep only so many ends.

    Who follows a running engine removes what is done by `forget_request` and `forget_step`.
    """

    def __init__(self, keep: int | None = None) -> None:
        self._keep = keep
        self.requests: dict[Number, RequestJourney] = {}
        self.stays: dict[Number, Stay] = {}
        self.steps: dict[str, StepJourney] = {}  # by trace id
        self.bags: list[Bag] = []  # those of no known step, and all of them where nothing is forgotten
        self.phases: list[tuple[Process, rec.Phase]] = []
        self.deaths: list[tuple[Process, rec.EngineDead]] = []
        self.dropped: list[tuple[Process, rec.Dropped]] = []
        self.unclaimed = 0
        self._posted: dict[str, tuple[RequestJourney, rec.Post]] = {}  # by internal id
        self._received: dict[str, Stay] = {}  # by internal id
        self._abort_receipts: dict[str, list[tuple[Process, rec.ReceiveAbort]]] = defaultdict(list)
        self._steps_by_number: dict[Number, StepJourney] = {}
        self._early: dict[str, list[Callable[[StepJourney], None]]] = defaultdict(list)  # before Schedule, by trace id
        self._stop_aborts: dict[int, list[tuple[RequestJourney, rec.Abort]]] = defaultdict(list)  # by id of the Process
        self._handlers: dict[type[rec.Record], Callable[[Process, Any], None]] = {
            rec.Accept: self._accept,
            rec.Tokenise: self._tokenise,
            rec.Post: self._post,
            rec.Sort: self._sort,
            rec.Takes: self._takes,
            rec.Abort: self._abort,
            rec.Close: self._close,
            rec.Receive: self._receive,
            rec.ReceiveAbort: self._receive_abort,
            rec.Schedule: self._schedule,
            rec.Execute: self._execute,
            rec.Update: self._update,
            rec.Send: self._send,
            rec.Leave: self._leave,
            rec.Work: self._work,
            rec.Phase: lambda process, record: self.phases.append((process, record)),
            rec.EngineDead: lambda process, record: self.deaths.append((process, record)),
            rec.Dropped: lambda process, record: self.dropped.append((process, record)),
            rec.Bye: lambda process, record: None,
        }

    def feed(self, process: Process, record: rec.Record) -> None:
        """Take one record of `process` in."""
        process.t_last = max(process.t_last, record.newest)
        self._handlers[type(record)](process, record)

    # ---- front end --------------------------------------------------------------------------------------------------------

    def _accept(self, process: Process, record: rec.Accept) -> None:
        self.requests[id(process), record.req] = RequestJourney(process, record, Ends(self._keep), Ends(self._keep))

    def _request(self, process: Process, req: int) -> RequestJourney | None:
        request = self.requests.get((id(process), req))
        if request is None:
            self.unclaimed += 1
        return request

    def _tokenise(self, process: Process, record: rec.Tokenise) -> None:
        if request := self._request(process, record.req):
            request.tokenise = record

    def _post(self, process: Process, record: rec.Post) -> None:
        if request := self._request(process, record.req):
            request.posts.append(record)
            self._posted[record.internal_id] = request, record
            request.abort_receipts += self._abort_receipts.pop(record.internal_id, [])
            self._join(record.internal_id)

    def _takes(self, process: Process, record: rec.Takes) -> None:
        for req, *take in zip(record.reqs, record.ts, record.tokens, record.waits, strict=True):
            if request := self._request(process, req):
                request.takes.append(Take(*take))

    def _abort(self, process: Process, record: rec.Abort) -> None:
        if request := self._request(process, record.req):
            request.aborts.append(record)
            if record.reason == "stop_string":
                self._stop_aborts[id(process)].append((request, record))

    def _close(self, process: Process, record: rec.Close) -> None:
        if request := self._request(process, record.req):
            request.close = record
            request.num_closes += 1

    def _sort(self, process: Process, record: rec.Sort) -> None:
        bag = Bag(process, record)
        sizes = [size for _, _, size in record.slices]
        index, room = 0, sizes[0] if sizes else 0
        for req, tokens, fate in zip(record.reqs, record.tokens, record.fates, strict=True):
            while room <= 0 and index + 1 < len(sizes):
                index += 1
                room += sizes[index]
            room -= 1
            request = self._request(process, req) if req else None
            letter = Letter(request, bag, tokens, fate, index, request.num_tokens if request else 0)
            bag.letters.append(letter)
            if request is not None:
                request.letters.append(letter)
                request.num_tokens += tokens
        for internal_id, tokens in record.late:
            request, _ = self._posted.get(internal_id, (None, None))
            letter = Letter(request, bag, tokens, LATE, max(len(sizes) - 1, 0), request.num_tokens if request else 0)
            bag.letters.append(letter)
            if request is not None:
                request.late.append(letter)
        bag.aborts = [(r, a) for r, a in self._stop_aborts.pop(id(process), []) if record.t_received <= a.t <= record.t_done]
        self.bags.append(bag)
        if sent_by := parse_traceparent(record.trace):
            self._of_step(sent_by.trace_id, lambda step: _opened(step, bag))

    # ---- engine core ------------------------------------------------------------------------------------------------------

    def _stay(self, process: Process, req: int) -> Stay:
        key = id(process), req
        if key not in self.stays:
            self.stays[key] = Stay(process, req, spells=[Spell(None, Ends(self._keep))])
        return self.stays[key]

    def _receive(self, process: Process, record: rec.Receive) -> None:
        stay = self._stay(process, record.req)
        stay.receive = record
        stay.spells[0].t_queued = record.t1
        self._received[record.internal_id] = stay
        self._join(record.internal_id)

    def _join(self, internal_id: str) -> None:
        stay, posted = self._received.get(internal_id), self._posted.get(internal_id)
        if stay is not None and posted is not None:
            stay.request, stay.post = posted
            stay.request.stays.append(stay)

    def _receive_abort(self, process: Process, record: rec.ReceiveAbort) -> None:
        for internal_id in record.internal_ids:
            posted = self._posted.get(internal_id)
            receipts = posted[0].abort_receipts if posted else self._abort_receipts[internal_id]
            receipts.append((process, record))

    def _leave(self, process: Process, record: rec.Leave) -> None:
        self._stay(process, record.req).leave = record

    def _schedule(self, process: Process, record: rec.Schedule) -> None:
        step = StepJourney(process, record)
        self.steps[record.trace_id] = self._steps_by_number[id(process), record.step] = step
        for req in record.preempted:
            stay = self._stay(process, req)
            step.preempted.append(stay)
            stay.spells[-1].t_preempted = record.t0
            stay.spells.append(Spell(record.t0, Ends(self._keep)))
        cached, prefills = dict(record.new), set(record.prefills)
        for req, tokens in zip(record.reqs, record.tokens, strict=True):
            stay = self._stay(process, req)
            step.stays.append((stay, tokens))
            _share(stay.spells[-1], Share(step, tokens, req in prefills), cached.get(req))
        for action in self._early.pop(record.trace_id, []):
            action(step)

    def _execute(self, process: Process, record: rec.Execute) -> None:
        if step := self._step(process, record.step):
            step.execute = record

    def _update(self, process: Process, record: rec.Update) -> None:
        if step := self._step(process, record.step):
            step.update = record
        for req, reason in record.finished:
            stay = self._stay(process, req)
            stay.finish_reason, stay.t_finished = reason, record.t1

    def _step(self, process: Process, number: int) -> StepJourney | None:
        step = self._steps_by_number.get((id(process), number))
        if step is None:
            self.unclaimed += 1
        return step

    # ---- across processes, by the step's trace id -------------------------------------------------------------------------

    def _work(self, process: Process, record: rec.Work) -> None:
        self._of_step(record.trace_id, lambda step: step.works.append((process, record)))

    def _send(self, process: Process, record: rec.Send) -> None:
        self._of_step(record.trace_id, lambda step: _sent(step, record))

    def _of_step(self, trace_id: str, action: Callable[[StepJourney], None]) -> None:
        if (step := self.steps.get(trace_id)) is not None:
            action(step)
        else:
            self._early[trace_id].append(action)
            if len(self._early) > EARLY:
                self.unclaimed += len(self._early.pop(next(iter(self._early))))

    # ---- for who follows a running engine ---------------------------------------------------------------------------------

    def forget_request(self, request: RequestJourney) -> None:
        """Drop a request and its stays; what still comes of them counts as unclaimed.

        What it knew of its steps goes too: else one long request would hold on to all that ever ran beside it.
        """
        del self.requests[id(request.process), request.accept.req]
        for post in request.posts:
            self._posted.pop(post.internal_id, None)
        for stay in request.stays:
            self.stays.pop((id(stay.process), stay.req), None)
            stay.spells.clear()
            if stay.receive is not None:
                self._received.pop(stay.receive.internal_id, None)
        request.letters, request.takes = Ends(0), Ends(0)
        request.late.clear()

    def forget_step(self, step: StepJourney) -> None:
        """Drop a step and its bags; requests that took part keep its times."""
        self.steps.pop(step.schedule.trace_id, None)
        self._steps_by_number.pop((id(step.process), step.index), None)
        step.stays.clear()
        step.preempted.clear()
        for bag in step.bags:
            bag.letters.clear()
            bag.aborts.clear()

    def finish(self) -> None:
        """No more records come: what still waits for its step is unclaimed."""
        self.unclaimed += sum(len(actions) for actions in self._early.values())
        self._early.clear()


def _share(spell: Spell, share: Share, num_cached_tokens: int | None) -> None:
    """Note that the spell goes on with `share`; `num_cached_tokens` comes with its first one."""
    if spell.t_scheduled is None:
        spell.t_scheduled = share.step.schedule.t0
    if num_cached_tokens is not None:
        spell.num_cached_tokens = num_cached_tokens
    if share.prefill:
        spell.num_prefills += 1
        spell.num_prefill_tokens += share.tokens
    spell.shares.append(share)


def _opened(step: StepJourney, bag: Bag) -> None:
    bag.step = step
    step.bags.append(bag)
    for send in step.sends:
        _match(bag, send)


def _sent(step: StepJourney, send: rec.Send) -> None:
    step.sends.append(send)
    for bag in step.bags:
        _match(bag, send)


def _match(bag: Bag, send: rec.Send) -> None:
    """Give the bag its send record, where it is the one whose traceparent the bag carried."""
    sent_by = parse_traceparent(bag.sort.trace)
    if sent_by is not None and sent_by.span_id == send.span_id:
        bag.send = send
