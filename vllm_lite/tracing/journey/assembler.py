"""Puts the records of all processes together: by request number within a process, by internal id and trace id across.

Process: readers. Knows: which record belongs to what. Does not know: files or spans. Records of one spool come in order; those
of different spools may come in any, so whatever refers to something not yet seen waits for it.
Mirrors: nothing in vLLM.
"""

from collections import defaultdict
from collections.abc import Callable, Sized
from typing import Any, TypeVar

from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.context import parse_traceparent
from vllm_lite.tracing.journey.model import LATE, Bag, Letter, RequestJourney, Spell, Stay, StepJourney, UtilityCall
from vllm_lite.tracing.process import Process

EARLY = 10_000  # things of one kind that may be waited for before the oldest is given up
Number = tuple[Process, int]  # with a request's or a step's number in it
T = TypeVar("T")


class Known(dict[str, T]):
    """Things by a key that other processes know them by, and what waits for those that have not come yet."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[T], None]]] = defaultdict(list)

    def add(self, key: str, thing: T) -> None:
        """It has come."""
        self[key] = thing
        for action in self.waiting.pop(key, ()):
            action(thing)

    def then(self, key: str, action: Callable[[T], None]) -> int:
        """Do it to that thing, now or when it comes. Returns how many actions, of those that waited longest, were given up."""
        if key in self:
            action(self[key])
            return 0
        self.waiting[key].append(action)
        return len(self.waiting.pop(next(iter(self.waiting)))) if len(self.waiting) > EARLY else 0


class Assembler:
    """Feed it records, look into its tables.

    Who follows a running engine removes what is done by `forget_request`, `forget_stay` and `forget_step`.
    """

    def __init__(self) -> None:
        self.requests: dict[Number, RequestJourney] = {}
        self.stays: dict[Process, dict[int, Stay]] = defaultdict(dict)
        self.steps: Known[StepJourney] = Known()  # by trace id
        self.bags: list[Bag] = []  # those of no known step, and all of them where nothing is forgotten
        self.calls: dict[str, UtilityCall] = defaultdict(UtilityCall)  # by the caller's span
        self.phases: list[tuple[Process, rec.Phase]] = []
        self.deaths: list[tuple[Process, rec.EngineDead]] = []
        self.dropped: list[tuple[Process, rec.Dropped]] = []
        self.unclaimed = 0
        self._numbered: dict[Process, dict[int, RequestJourney]] = defaultdict(dict)
        self._posted: Known[RequestJourney] = Known()  # by internal id
        self._posts: Known[tuple[RequestJourney, rec.Post]] = Known()  # by span id
        self._received: dict[str, Stay] = {}  # by internal id; of a session's parts the last
        self._steps_by_number: dict[Number, StepJourney] = {}
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
            rec.Farewell: self._farewell,
            rec.Receive: self._receive,
            rec.ReceiveAbort: self._receive_abort,
            rec.Schedule: self._schedule,
            rec.Execute: self._execute,
            rec.Update: self._update,
            rec.Send: lambda process, send: self._of_step(send.trace_id, lambda step: step.sends.append(send)),
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
            request.tokenised.append(record)

    def _post(self, process: Process, record: rec.Post) -> None:
        if request := self._request(process, record.req):
            request.posts.append(record)
            self._posted.add(record.internal_id, request)
            self._posts.add(record.span_id, (request, record))

    def _takes(self, process: Process, record: rec.Takes) -> None:
        _check_columns(process, record, record.reqs, record.ts, record.tokens or record.ts)
        for t, request in zip(record.ts, map(self._numbered[process].get, record.reqs), strict=True):
            if request is not None:
                request.t_takes.append(t)
            else:
                self.unclaimed += 1
        for req, tokens in zip(record.reqs, record.tokens, strict=False):
            if (request := self._numbered[process].get(req)) is not None:
                request.taken.append(tokens)

    def _abort(self, process: Process, record: rec.Abort) -> None:
        if request := self._request(process, record.req):
            request.aborts.append(record)
            if record.reason == "stop_string":
                self._stop_aborts[process].append((request, record))

    def _close(self, process: Process, record: rec.Close) -> None:
        if request := self._request(process, record.req):
            request.close = record
            request.num_closes += 1

    def _farewell(self, process: Process, record: rec.Farewell) -> None:
        if request := self._request(process, record.req):
            request.farewells.append(record)

    def _sort(self, process: Process, record: rec.Sort) -> None:
        _check_columns(process, record, record.reqs, record.tokens, record.fates)
        _check_columns(process, record, record.slices, record.gone or record.slices)
        bag = Bag(process, record, list(map(self._numbered[process].get, record.reqs)))
        for place, request in enumerate(bag.members):
            if request is not None:
                request.bags.append(bag)
                request.places.append(place)
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
        self._received[record.internal_id] = stay
        self._posts.then(record.parent_span_id, lambda sent: _join(stay, *sent))

    def _receive_abort(self, process: Process, record: rec.ReceiveAbort) -> None:
        for internal_id in record.internal_ids:
            self._posted.then(internal_id, lambda request: request.abort_receipts.append((process, record)))

    def _leave(self, process: Process, record: rec.Leave) -> None:
        self._stay(process, record.req).leave = record

    def _schedule(self, process: Process, record: rec.Schedule) -> None:
        _check_columns(process, record, record.reqs, record.tokens)
        step = self._steps_by_number[process, record.step] = StepJourney(process, record)
        for req in record.preempted:
            stay = self._stay(process, req)
            step.preempted.append(stay)
            stay.spells[-1].t_preempted = record.t0
            stay.spells.append(Spell(req, record.t0))
        for req, count in record.refused:
            self._stay(process, req).num_refused = count
        stays = self.stays[process]
        try:
            step.members = [stays[req] for req in record.reqs]
        except KeyError:
            step.members = [self._stay(process, req) for req in record.reqs]
        for stay in step.members:
            stay.spells[-1].steps.append(step)
        self.steps.add(record.trace_id, step)

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
        self.unclaimed += self.steps.then(trace_id, action)

    # ---- for who follows a running engine ---------------------------------------------------------------------------------

    def forget_request(self, request: RequestJourney) -> None:
        """Drop a request and its stays; what still comes of them counts as unclaimed.

        What it knew of its steps goes too: else one long request would hold on to all that ever ran beside it.
        """
        del self.requests[request.process, request.accept.req]
        del self._numbered[request.process][request.accept.req]
        for post in request.posts:
            self._posted.pop(post.internal_id, None)
            self._posts.pop(post.span_id, None)
        for stay in request.stays:
            self.forget_stay(stay)
        for held in (request.bags, request.places, request.t_takes, request.taken, request.late):
            held.clear()

    def forget_stay(self, stay: Stay) -> None:
        """Drop a stay; nobody waits for the request of a stray any more."""
        self.stays[stay.process].pop(stay.req, None)
        stay.spells.clear()
        if stay.receive is not None:
            self._received.pop(stay.receive.internal_id, None)
            self._posts.waiting.pop(stay.receive.parent_span_id, None)

    def forget_step(self, step: StepJourney) -> None:
        """Drop a step and its bags; requests that took part keep its times and their letters."""
        del self.steps[step.schedule.trace_id]
        del self._steps_by_number[step.process, step.index]
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
        self.unclaimed += sum(map(len, self.steps.waiting.values()))
        self.steps.waiting.clear()


def _join(stay: Stay, request: RequestJourney, post: rec.Post) -> None:
    stay.request, stay.post = request, post
    request.stays.append(stay)
    for known in request.stays:
        known.link = None  # one made before names the stay, or one sample alone


def _opened(step: StepJourney, bag: Bag) -> None:
    bag.step = step
    step.bags.append(bag)


def _check_columns(process: Process, record: rec.Record, first: Sized, *others: Sized) -> None:
    """Refuse what no recorder writes, before somebody meets it as an IndexError."""
    if any(len(column) != len(first) for column in others):
        told = f"the {process.role} {process.pid} wrote a {type(record).__name__} record whose columns differ in length"
        raise VLLMValidationError(f"{told}: its spool was changed since; remove that file", parameter="spool", value=record)
