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
from vllm_lite.tracing.journey.model import LATE, Bag, Letter, RequestJourney, Spell, Stay, StepJourney, UtilityCall
from vllm_lite.tracing.process import Process

EARLY = 10_000  # traces that may wait for their step's Schedule record before the oldest is given up
Number = tuple[Process, int]  # with a request's or a step's number in it


class Assembler:
    """Feed it records, look into its tables.

    Who follows a running engine removes what is done by `forget_request` and `forget_step`.
    """

    def __init__(self) -> None:
        self.requests: dict[Number, RequestJourney] = {}
        self.stays: dict[Process, dict[int, Stay]] = defaultdict(dict)
        self.steps: dict[str, StepJourney] = {}  # by trace id
        self.bags: list[Bag] = []  # those of no known step, and all of them where nothing is forgotten
        self.calls: dict[str, UtilityCall] = defaultdict(UtilityCall)  # by the caller's span
        self.phases: list[tuple[Process, rec.Phase]] = []
        self.deaths: list[tuple[Process, rec.EngineDead]] = []
        self.dropped: list[tuple[Process, rec.Dropped]] = []
        self.unclaimed = 0
        self._numbered: dict[Process, dict[int, RequestJourney]] = defaultdict(dict)
        self._posted: dict[str, RequestJourney] = {}  # by internal id
        self._received: dict[str, Stay] = {}  # by internal id; of a session's parts the last
        self._sent: dict[str, tuple[RequestJourney, rec.Post]] = {}  # not received as far as is known, by the sender's span id
        self._arrived: dict[str, Stay] = {}  # not sent as far as is known, the same
        self._abort_receipts: dict[str, list[tuple[Process, rec.ReceiveAbort]]] = defaultdict(list)
        self._steps_by_number: dict[Number, StepJourney] = {}
        self._early: dict[str, list[Callable[[StepJourney], None]]] = defaultdict(list)  # before Schedule, by trace id
        self._stop_aborts: dict[Process, list[tuple[RequestJourney, rec.Abort]]] = defaultdict(list)
        self._handlers: dict[type[rec.Record], Callable[[Process, Any], None]] = {
            rec.Accept: self._accept,
            rec.Tokenise: self._tokenise,
            rec.Post: self._post,
            rec.Sort: self._sort,
            rec.Takes: self._takes,
            rec.Abort: self._abort,
            rec.Close: self._close,
            rec.Call: lambda process, call: setattr(self.calls[call.span_id], "call", (process, call)),
            rec.Receive: self._receive,
            rec.ReceiveAbort: self._receive_abort,
            rec.Schedule: self._schedule,
            rec.Execute: self._execute,
            rec.Update: self._update,
            rec.Send: lambda process, send: self._of_step(send.trace_id, lambda step: _sent(step, send)),
            rec.Leave: self._leave,
            rec.Serve: lambda process, serve: setattr(self.calls[serve.parent_span_id], "serve", (process, serve)),
            rec.Work: lambda process, work: self._of_step(work.trace_id, lambda step: step.works.append((process, work))),
            rec.Phase: self._phase,
            rec.EngineDead: lambda process, death: self.deaths.append((process, death)),
            rec.Dropped: lambda process, dropped: self.dropped.append((process, dropped)),
            rec.Bye: lambda process, bye: None,
        }

    def feed(self, process: Process, record: rec.Record) -> None:
        """Take one record of `process` in."""
        process.t_last = max(process.t_last, record.newest)
        self._handlers[type(record)](process, record)

    # ---- front end --------------------------------------------------------------------------------------------------------

    def _accept(self, process: Process, record: rec.Accept) -> None:
        self.requests[process, record.req] = self._numbered[process][record.req] = RequestJourney(process, record)

    def _request(self, process: Process, req: int) -> RequestJourney | None:
        request = self._numbered[process].get(req)
        self.unclaimed += request is None
        return request

    def _tokenise(self, process: Process, record: rec.Tokenise) -> None:
        if request := self._request(process, record.req):
            if request.tokenise is None:
                request.tokenise = record
            else:
                request.later_parts.append(record)

    def _post(self, process: Process, record: rec.Post) -> None:
        if request := self._request(process, record.req):
            request.posts.append(record)
            self._posted[record.internal_id] = request
            self._sent[record.span_id] = request, record
            request.abort_receipts += self._abort_receipts.pop(record.internal_id, [])
            self._join(record.span_id)

    def _takes(self, process: Process, record: rec.Takes) -> None:
        for place, request in enumerate(map(self._numbered[process].get, record.reqs)):
            if request is not None:
                request.takes.sources.append(record)
                request.takes.places.append(place)
            else:
                self.unclaimed += 1

    def _abort(self, process: Process, record: rec.Abort) -> None:
        if request := self._request(process, record.req):
            request.aborts.append(record)
            if record.reason == "stop_string":
                self._stop_aborts[process].append((request, record))

    def _close(self, process: Process, record: rec.Close) -> None:
        if request := self._request(process, record.req):
            request.close = record
            request.num_closes += 1

    def _sort(self, process: Process, record: rec.Sort) -> None:
        bag = Bag(process, record, list(map(self._numbered[process].get, record.reqs)))
        for place, request in enumerate(bag.members):
            if request is not None:
                request.letters.sources.append(bag)
                request.letters.places.append(place)
                request.num_tokens += record.tokens[place]
            elif record.reqs[place]:  # 0 stands for one that is not traced
                self.unclaimed += 1
        for internal_id, tokens in record.late:
            request = self._posted.get(internal_id)
            bag.late.append(Letter(request, bag, tokens, LATE, max(len(record.slices) - 1, 0)))
            if request is not None:
                request.late.append(bag.late[-1])
        bag.aborts = [(r, a) for r, a in self._stop_aborts.pop(process, []) if record.t_received <= a.t <= record.t_done]
        self.bags.append(bag)
        if sent_by := parse_traceparent(record.trace):
            self._of_step(sent_by.trace_id, lambda step: _opened(step, bag))

    # ---- engine core ------------------------------------------------------------------------------------------------------

    def _stay(self, process: Process, req: int) -> Stay:
        stays = self.stays[process]
        if req not in stays:
            stays[req] = Stay(process, req, [Spell(req)])
        return stays[req]

    def _receive(self, process: Process, record: rec.Receive) -> None:
        stay = self._stay(process, record.req)
        stay.receive, stay.spells[0].t_queued = record, record.t1
        self._received[record.internal_id] = self._arrived[record.parent_span_id] = stay
        self._join(record.parent_span_id)

    def _join(self, span_id: str) -> None:
        if span_id in self._sent and span_id in self._arrived:
            stay = self._arrived.pop(span_id)
            stay.request, stay.post = self._sent.pop(span_id)
            stay.request.stays.append(stay)

    def _receive_abort(self, process: Process, record: rec.ReceiveAbort) -> None:
        for internal_id in record.internal_ids:
            posted = self._posted.get(internal_id)
            receipts = posted.abort_receipts if posted else self._abort_receipts[internal_id]
            receipts.append((process, record))

    def _leave(self, process: Process, record: rec.Leave) -> None:
        self._stay(process, record.req).leave = record

    def _schedule(self, process: Process, record: rec.Schedule) -> None:
        step = StepJourney(process, record)
        self.steps[record.trace_id] = self._steps_by_number[process, record.step] = step
        for req in record.preempted:
            stay = self._stay(process, req)
            step.preempted.append(stay)
            stay.spells[-1].t_preempted = record.t0
            stay.spells.append(Spell(req, record.t0))
        for req, count in record.refused:
            self._stay(process, req).num_refused = count
        stays = self.stays[process]
        step.members = [stays.get(req) or self._stay(process, req) for req in record.reqs]
        for stay in step.members:
            stay.spells[-1].steps.append(step)
        for action in self._early.pop(record.trace_id, []):
            action(step)

    def _execute(self, process: Process, record: rec.Execute) -> None:
        if step := self._step(process, record.step):
            step.execute = record

    def _update(self, process: Process, record: rec.Update) -> None:
        if record.step >= 0 and (step := self._step(process, record.step)):
            step.update = record
        for req, reason in record.finished:
            stay = self._stay(process, req)
            stay.finish_reason, stay.t_finished = reason, record.t1
        for internal_id, count in record.stale:
            if (gone := self._received.get(internal_id)) is not None:  # else it is not traced
                gone.num_stale += count

    def _phase(self, process: Process, record: rec.Phase) -> None:
        self.phases.append((process, record))
        process.failed = process.failed or record.error is not None

    def _step(self, process: Process, number: int) -> StepJourney | None:
        step = self._steps_by_number.get((process, number))
        self.unclaimed += step is None
        return step

    def _of_step(self, trace_id: str, action: Callable[[StepJourney], None]) -> None:
        """Do it to the step of that trace, once its Schedule record has come: workers and front ends have other spools."""
        if (step := self.steps.get(trace_id)) is not None:
            action(step)
            return
        self._early[trace_id].append(action)
        if len(self._early) > EARLY:
            self.unclaimed += len(self._early.pop(next(iter(self._early))))

    # ---- for who follows a running engine ---------------------------------------------------------------------------------

    def forget_request(self, request: RequestJourney) -> None:
        """Drop a request and its stays; what still comes of them counts as unclaimed.

        What it knew of its steps goes too: else one long request would hold on to all that ever ran beside it.
        """
        del self.requests[request.process, request.accept.req]
        del self._numbered[request.process][request.accept.req]
        for post in request.posts:
            self._posted.pop(post.internal_id, None)
            self._sent.pop(post.span_id, None)
        for stay in request.stays:
            self.stays[stay.process].pop(stay.req, None)
            stay.spells.clear()
            if stay.receive is not None:
                self._received.pop(stay.receive.internal_id, None)
        for held in (request.letters, request.takes, request.late):
            held.clear()

    def forget_step(self, step: StepJourney) -> None:
        """Drop a step and its bags; requests that took part keep its times and their letters."""
        self.steps.pop(step.schedule.trace_id, None)
        self._steps_by_number.pop((step.process, step.index), None)
        step.members.clear()
        step.preempted.clear()
        for bag in step.bags:
            bag.members, bag.late = [None] * len(bag.members), [letter._replace(request=None) for letter in bag.late]
            bag.aborts.clear()
            vars(bag).pop("letters", None)  # they hold on to their requests, and are made again for who still asks

    @property
    def strays(self) -> list[Stay]:
        """Stays in an engine core of which no request is known."""
        return [stay for stays in self.stays.values() for stay in stays.values() if stay.request is None]

    def finish(self) -> None:
        """No more records come: what still waits for its step is unclaimed."""
        self.unclaimed += sum(len(actions) for actions in self._early.values())
        self._early.clear()


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
