"""Rules about counts: letters, tokens, bags and aborts add up, in the spools and against what the callers wrote themselves.

Process: readers. Knows: the journey model, client.jsonl. Does not know: spans.
Mirrors: nothing in vLLM.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.context import parse_traceparent
from vllm_lite.tracing.journey import Process, RequestJourney, Run

ClientLine = dict[str, Any]
Held = tuple[bool, str]  # a rule applied to one thing: whether it holds, and the sentence for where it does not
SAMPLES_ALL = (None, "always_on", "parentbased_always_on")  # requests without a parent, that is
STEPS_IN_FLIGHT = 2  # of one engine core at most


def one_close(run: Run) -> Iterator[Held]:
    """Each request that entered ended exactly once; without an end only where its front end died or still runs."""
    for request in run.requests:
        still_open = request.close is None and not request.process.ended
        yield request.num_closes == 1 or still_open, f"{_name(request)} ended {request.num_closes} times"


def letters(run: Run) -> Iterator[Held]:
    """puts == takes + staples + left, and from level 2 the single letters and takes say the same."""
    for request, close in _closed(run):
        name, fates = _name(request), request.fates + "".join(farewell.fate for farewell in request.farewells)
        yield _equal(name, puts=close.puts, takes_staples_left=close.takes + close.staples + close.left)
        if _level(request) < 2:
            continue
        stapled = fates.count(rec.STAPLED)
        yield _equal(f"{name} puts", close=close.puts, letters=fates.count(rec.PUT) + stapled)
        yield _equal(f"{name} staples", close=close.staples, letters=stapled)
        yield _equal(f"{name} kept back", close=close.kept_back, letters=fates.count(rec.KEPT_BACK))
        yield _equal(f"{name} takes", close=close.takes, taken=len(request.t_takes))


def tokens(run: Run, client: Sequence[ClientLine] | None) -> Iterator[Held]:
    """The tokens of letters, takes and usage are the same, and the same as the ids and takes that the caller wrote down."""
    for request, close in _closed(run):
        if close.outcome == "finished" and _level(request) >= 2:
            taken = _with_left(close, "taken", _tokens_taken(request))
            yield _equal(f"{_name(request)} tokens", usage=close.num_output_tokens, letters=request.num_tokens, **taken)
    if client is not None:
        yield from _against(run, client)


def _against(run: Run, client: Sequence[ClientLine]) -> Iterator[Held]:
    requests = {request.accept.external_id: request for request in run.requests}
    for line in client:
        request = requests.pop(line["request_id"], None)
        caller = parse_traceparent(line.get("traceparent"))
        if request is not None and request.close is not None:
            yield from _against_one(request, request.close, line)
            if caller is not None:
                yield _equal(f"{_name(request)} trace", caller=caller.trace_id, accept=request.accept.trace_id)
            continue
        may_be_unsampled = line.get("sampler") not in SAMPLES_ALL or (caller is not None and not caller.sampled)
        told = f"{line['request_id']}: its caller knows it, the spools do not know how it ended"
        yield request is None and may_be_unsampled, told
    for name, request in requests.items():  # a front end that was killed took its callers with it
        yield not request.process.ended, f"{name}: the spools know it, no caller does"


def _against_one(request: RequestJourney, close: rec.Close, line: ClientLine) -> Iterator[Held]:
    name, takes, num_tokens = _name(request), line.get("takes"), len(line.get("token_ids") or ())
    if close.left and close.left_tokens < 0:  # the caller may have taken them when the engine was gone
        within = takes in (close.takes, close.takes + close.left)
        yield within, f"{name} takes: caller={takes}, close={close.takes}, left={close.left}"
        return
    yield _equal(f"{name} takes", caller=takes, close=close.takes)
    if _level(request) >= 2:
        yield _equal(f"{name} taken", caller=num_tokens, takes=_tokens_taken(request))
    if close.outcome == "finished":
        yield _equal(f"{name} usage", **_with_left(close, "caller", num_tokens), close=close.num_output_tokens)
        reasons = [None] if close.left else sorted(set(close.finish_reasons))
        yield _equal(f"{name} finish", caller=[line.get("finish_reason")], close=reasons)


def _with_left(close: rec.Close, name: str, tokens: int) -> dict[str, int]:
    """A caller's tokens under `name`, with those that were left in its slot; nothing where nobody counted these."""
    if not close.left:
        return {name: tokens}
    return {} if close.left_tokens < 0 else {f"{name}_and_left": tokens + close.left_tokens}


def bags(run: Run, max_slice: int = 128) -> Iterator[Held]:
    """Slices add up to the bag and none is longer than `max_slice`; every letter has one fate; what was sent was sorted, and no
    bag of a front end's count is missing."""
    for process, count in Counter(bag.process for bag in run.bags).items():
        last = max(bag.sort.bag for bag in run.bags if bag.process is process)
        yield _equal(f"front end {process.pid} bags", recorded=count, counted=last + 1)
    for bag in run.bags:
        sort, send, name = bag.sort, bag.send, f"bag {bag.sort.bag}"
        sizes, counts = [size for _, _, size in sort.slices], (sort.num_put, sort.num_stapled, sort.num_kept_back)
        yield _equal(f"{name} letters", bag=sort.num_outputs, slices=sum(sizes), fates=sum(counts) + len(sort.late))
        yield max(sizes, default=0) <= max_slice, f"{name} has a slice of {max(sizes, default=0)}"
        if sort.fates:
            columns = tuple(map(sort.fates.count, (rec.PUT, rec.STAPLED, rec.KEPT_BACK)))
            yield _equal(f"{name} fates", columns=columns, counts=counts)
        if send is not None:
            sent, came = (send.num_outputs, send.body_size), (sort.num_outputs, sort.body_size)
            yield _equal(f"{name} outputs and bytes", sent=sent, sorted=came)


def steps(run: Run) -> Iterator[Held]:
    """Whoever got a letter took part in its step, which each of its engine core's workers ran and whose result was taken over.
    Of a killed engine core, the last bag may be without one."""
    runs = _runs(run)
    over = [step for step in run.steps if step.process.ended and not step.process.died]
    ran = [step for step in over if any(bag.sort.num_tokens for bag in step.bags)]
    ranks = {process: max(len(step.works) for step in ran if step.process is process) for process in {s.process for s in ran}}
    for step in ran:
        if all(_level(request) for request in step.requests):
            done, bags = len(step.works) == ranks[step.process], step.update.num_bags if step.update else 0
            whole = done and step.execute is not None and bags in (-1, len(step.sends))
            yield whole, f"step {step.index}: a record of how it was run, taken over or sent is missing"
    for bag in run.bags:
        if bag.step is not None:
            members = {id(request) for request in bag.step.requests}
            # Where tracing was off for a while, the engine core may have let a request in without noting it.
            known = [letter.request for letter in bag.letters if letter.request is not None and _level(letter.request) > 0]
            strangers = sum(id(request) not in members for request in known)
            told = f"bag {bag.sort.bag}: {strangers} letters for requests that were not in its step"
            yield strangers == 0 or runs, told
    lost, died = sum(bag.send is None and bag.sort.trace is not None for bag in run.bags), len(_killed_cores(run))
    yield lost <= died or runs, f"{lost} bags came from no recorded step; {died} engine cores were killed"


def aborts(run: Run) -> Iterator[Held]:
    """An abort is sent once, reaches the engine core unless that died, and says what the request's end says."""
    for request in run.requests:
        name, close, stays = _name(request), request.close, request.stays
        ids = [internal_id for abort in request.aborts for internal_id in abort.internal_ids]
        yield len(ids) == len(set(ids)), f"{name} was aborted more than once"
        if close is None:
            continue
        if close.outcome == "aborted" and request.posts:
            # A pause or a shutdown needs no message, and leaves no mark on a session between two parts.
            by_the_core = any(stay.leave for stay in stays) or (bool(stays) and all(stay.finish_reason for stay in stays))
            yield bool(ids) or by_the_core, f"{name} ended as aborted, but nobody gave it up"
        if {abort.reason for abort in request.aborts} == {"stop_string"} and len(request.posts) == 1:
            yield _equal(f"{name} stopped by a string", close=close.outcome, expected="finished")
        if ids and not any(stay.process.died for stay in stays):
            lost = set(ids).difference(*(receipt.internal_ids for _, receipt in request.abort_receipts))
            yield not lost, f"{name}: {len(lost)} aborts did not reach the engine core"


def engine_dead(run: Run) -> Iterator[Held]:
    """For a run whose engine core was killed: who was in flight ended with that error, and all it had done but the last step
    is recorded."""
    dead = _killed_cores(run)
    yield bool(dead), "no engine core was killed"
    yield any(step.process in dead for step in run.steps), "of the engine core no step is recorded"
    for request in run.requests:
        if any(stay.t_end is None and stay.process in dead for stay in request.stays):
            outcome = request.close.outcome if request.close else "still open"
            yield _equal(f"{_name(request)} in flight", outcome=outcome, expected="engine_dead")
    behind = sum(bag.step is None and bag.sort.trace is not None for bag in run.bags)
    yield behind <= 1, f"{behind} bags were received whose step is not recorded"


def nothing_lost(run: Run) -> Iterator[Held]:
    """No record is missing but the last of a process that was killed."""
    runs = _runs(run)
    threads = sum(len(process.threads) for process in run.processes if not process.ended)
    yield run.torn <= threads, f"{run.torn} spools end in the middle of a frame, {threads} without a farewell"
    yield run.unknown == 0, f"{run.unknown} records are of a newer version"
    workers = sum(process.role == "worker" for process in run.processes)
    in_flight = STEPS_IN_FLIGHT * workers if _killed_cores(run) else 0  # recorded by workers before the core wrote its own part
    yield run.unclaimed <= in_flight or runs, f"{run.unclaimed} records belong to nothing"
    for request in filter(_level, run.requests):
        yield from _whole(request, runs)
    for _, dropped in run.dropped:
        yield False, f"{dropped.count} dropped: {dropped.reason}"


def _whole(request: RequestJourney, runs: bool) -> Iterator[Held]:
    """A request's way in and out: tokenised, posted and received, and out of each engine core that ended in order."""
    name, close, stays = _name(request), request.close, request.stays
    if close is not None:
        tokenised = sum(part.num_prompt_tokens for part in request.tokenised)
        yield _equal(f"{name} prompt", close=close.num_prompt_tokens, tokenised=tokenised)
    if close is not None and close.outcome == "finished" and close.num_prompt_tokens and not runs:  # else a session of no parts
        received = sum(stay.receive is not None for stay in stays)
        yield _equal(f"{name} on its way in", posted=max(len(request.posts), 1), received=received)
    endless = sum(stay.t_end is None and stay.process.ended and not stay.process.died for stay in stays)
    yield not endless, f"{name}: {endless} of its stays in the engine core have no end"


def _closed(run: Run) -> Iterator[tuple[RequestJourney, rec.Close]]:
    return ((request, request.close) for request in run.requests if request.close is not None)


def _tokens_taken(request: RequestJourney) -> int:
    return sum(take.tokens for take in request.takes)


def _killed_cores(run: Run) -> list[Process]:
    return [process for process in run.processes if process.role == "engine-core" and process.died]


def _runs(run: Run) -> bool:
    """It is still written: of its spools some were read a moment before others."""
    return any(process.alive for process in run.processes)


def _level(request: RequestJourney) -> int:
    """The level of which all is recorded: it may have been lowered while the request ran."""
    return request.accept.level if request.close is None else min(request.accept.level, request.close.level)


def _name(request: RequestJourney) -> str:
    return f"request {request.accept.external_id}"


def _equal(subject: str, **values: object) -> Held:
    """All `values` should be the same; the sentence names each with what it is."""
    told = ", ".join(f"{name}={value}" for name, value in values.items())
    first, *others = values.values()
    return all(value == first for value in others), f"{subject}: {told}"
