"""Rules about counts: letters, tokens, bags and aborts add up, in the spools and against what the callers wrote themselves.

Process: readers. Knows: the journey model, client.jsonl. Does not know: spans.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.check.finding import Finding
from vllm_lite.tracing.context import parse_traceparent
from vllm_lite.tracing.journey import RequestJourney, Run

ClientLine = dict[str, Any]
SAMPLES_ALL = (None, "always_on", "parentbased_always_on")  # requests without a parent, that is
STEPS_IN_FLIGHT = 2  # of one engine core at most


def one_close(run: Run) -> Finding:
    """Each request that entered ended exactly once; without an end only where its front end died or still runs."""
    finding = Finding("one end per request")
    for request in run.requests:
        still_open = request.close is None and not request.process.ended
        finding.expect(request.num_closes == 1 or still_open, f"{_name(request)} ended {request.num_closes} times")
    return finding


def letters(run: Run) -> Finding:
    """puts == takes + staples + left, and from level 2 the single letters and takes say the same."""
    finding = Finding("letters add up")
    for request in run.requests:
        close = request.close
        if close is None:
            continue
        finding.equal(_name(request), puts=close.puts, takes_staples_left=close.takes + close.staples + close.left)
        if _level(request) < 2 or request.letters.skipped:
            continue
        fates = "".join(letter.fate for letter in request.letters)
        stapled, kept = fates.count(rec.STAPLED), fates.count(rec.KEPT_BACK)
        # The letter that tells a caller of its abort comes from no bag.
        farewells = close.finish_reasons.count("abort")
        for what, counted, sorted_in in (
            ("puts", close.puts, fates.count(rec.PUT) + stapled),
            ("staples", close.staples, stapled),
        ):
            sentence = f"{_name(request)} {what}: close={counted}, letters={sorted_in}"
            finding.expect(sorted_in <= counted <= sorted_in + farewells, sentence)
        finding.equal(f"{_name(request)} kept back", close=close.kept_back, letters=kept)
        finding.equal(f"{_name(request)} takes", close=close.takes, taken=request.takes.total)
    return finding


def tokens(run: Run, client: Sequence[ClientLine] | None) -> Finding:
    """The tokens of letters, takes and usage are the same, and the same as the ids and takes that the caller wrote down."""
    finding = Finding("tokens add up")
    for request in run.requests:
        close = request.close
        if close is None or close.outcome != "finished":
            continue
        if _level(request) >= 2 and not request.letters.skipped:
            taken = _with_left(close, "taken", sum(take.tokens for take in request.takes))
            finding.equal(f"{_name(request)} tokens", usage=close.num_output_tokens, letters=request.num_tokens, **taken)
    if client is not None:
        _against(finding, run, client)
    return finding


def _against(finding: Finding, run: Run, client: Sequence[ClientLine]) -> None:
    requests = {request.accept.external_id: request for request in run.requests}
    for line in client:
        request = requests.pop(line["request_id"], None)
        caller = parse_traceparent(line.get("traceparent"))
        if request is None or request.close is None:
            may_be_unsampled = line.get("sampler") not in SAMPLES_ALL or (caller is not None and not caller.sampled)
            finding.expect(
                request is None and may_be_unsampled,
                f"{line['request_id']}: its caller knows it, the spools do not know how it ended",
            )
            continue
        close, name = request.close, _name(request)
        takes, num_tokens = line.get("takes"), len(line.get("token_ids") or ())
        if close.left and close.left_tokens < 0:  # the caller may have taken them when the engine was gone
            within = takes in (close.takes, close.takes + close.left)
            finding.expect(within, f"{name} takes: caller={takes}, close={close.takes}, left={close.left}")
            continue
        finding.equal(f"{name} takes", caller=takes, close=close.takes)
        if _level(request) >= 2 and not request.takes.skipped:
            finding.equal(f"{name} taken", caller=num_tokens, takes=sum(take.tokens for take in request.takes))
        if close.outcome == "finished":
            had = _with_left(close, "caller", num_tokens)
            finding.equal(f"{name} usage", **had, close=close.num_output_tokens)
            reasons = sorted(set(close.finish_reasons)) if not close.left else [None]
            finding.equal(f"{name} finish", caller=[line.get("finish_reason")], close=reasons)
        if caller is not None:
            finding.equal(f"{name} trace", caller=caller.trace_id, accept=request.accept.trace_id)
    for name, request in requests.items():  # a front end that was killed took its callers with it
        finding.expect(not request.process.ended, f"{name}: the spools know it, no caller does")


def _with_left(close: rec.Close, name: str, tokens: int) -> dict[str, int]:
    """A caller's tokens under `name`, with those that were left in its slot; nothing where nobody counted these."""
    if not close.left:
        return {name: tokens}
    return {} if close.left_tokens < 0 else {f"{name}_and_left": tokens + close.left_tokens}


def bags(run: Run, max_slice: int = 128) -> Finding:
    """Slices add up to the bag and none is longer than `max_slice`; every letter has one fate; what was sent was sorted, and no
    bag of a front end's count is missing."""
    finding = Finding("bags add up")
    for process, count in Counter(bag.process for bag in run.bags).items():
        last = max(bag.sort.bag for bag in run.bags if bag.process is process)
        finding.equal(f"front end {process.pid} bags", recorded=count, counted=last + 1)
    for bag in run.bags:
        sort, name = bag.sort, f"bag {bag.sort.bag}"
        sizes = [size for _, _, size in sort.slices]
        fates = sort.num_put + sort.num_stapled + sort.num_kept_back + len(sort.late)
        finding.equal(f"{name} letters", bag=sort.num_outputs, slices=sum(sizes), fates=fates)
        finding.expect(max(sizes, default=0) <= max_slice, f"{name} has a slice of {max(sizes, default=0)}")
        if sort.fates:
            columns = (sort.fates.count(rec.PUT), sort.fates.count(rec.STAPLED), sort.fates.count(rec.KEPT_BACK))
            finding.equal(f"{name} fates", columns=columns, counts=(sort.num_put, sort.num_stapled, sort.num_kept_back))
        if bag.send is not None:
            sent = bag.send.num_outputs, bag.send.body_size
            finding.equal(f"{name} outputs and bytes", sent=sent, sorted=(sort.num_outputs, sort.body_size))
    return finding


def steps(run: Run) -> Finding:
    """Whoever got a letter took part in its step, which each of its engine core's workers ran and whose result was taken over.
    Of a killed engine core, the last bag may be without one."""
    finding, runs = Finding("steps and bags"), _runs(run)
    over = [step for step in run.steps if step.process.ended and not step.process.died]
    ran = [step for step in over if any(bag.sort.num_tokens for bag in step.bags)]
    ranks = {process: max(len(step.works) for step in ran if step.process is process) for process in {s.process for s in ran}}
    for step in ran:
        if all(_level(request) for request in step.requests):
            done, bags = len(step.works) == ranks[step.process], step.update.num_bags if step.update else 0
            whole = done and step.execute is not None and bags in (-1, len(step.sends))
            finding.expect(whole, f"step {step.index}: a record of how it was run, taken over or sent is missing")
    for bag in run.bags:
        if bag.step is None:
            continue
        members = {id(request) for request in bag.step.requests}
        # Where tracing was off for a while, the engine core may have let a request in without noting it.
        known = [letter.request for letter in bag.letters if letter.request is not None and _level(letter.request) > 0]
        strangers = sum(id(request) not in members for request in known)
        told = f"bag {bag.sort.bag}: {strangers} letters for requests that were not in its step"
        finding.expect(strangers == 0 or runs, told)
    lost = [bag for bag in run.bags if bag.send is None and bag.sort.trace is not None]
    died = sum(process.died and process.role == "engine-core" for process in run.processes)
    told = f"{len(lost)} bags came from no recorded step; {died} engine cores were killed"
    finding.expect(len(lost) <= died or runs, told)
    return finding


def aborts(run: Run) -> Finding:
    """An abort is sent once, reaches the engine core unless that died, and says what the request's end says."""
    finding = Finding("aborts")
    for request in run.requests:
        name, close = _name(request), request.close
        ids = [internal_id for abort in request.aborts for internal_id in abort.internal_ids]
        finding.expect(len(ids) == len(set(ids)), f"{name} was aborted more than once")
        if close is None:
            continue
        if close.outcome == "aborted" and request.posts:
            stays = request.stays  # a pause or a shutdown needs no message, and leaves no mark on a session between two parts
            by_the_core = any(stay.leave for stay in stays) or (bool(stays) and all(stay.finish_reason for stay in stays))
            finding.expect(bool(ids) or by_the_core, f"{name} ended as aborted, but nobody gave it up")
        reasons = {abort.reason for abort in request.aborts}
        if reasons == {"stop_string"} and len(request.posts) == 1:
            finding.equal(f"{name} stopped by a string", close=close.outcome, expected="finished")
        if ids and not any(stay.process.died for stay in request.stays):
            received = {i for _, receipt in request.abort_receipts for i in receipt.internal_ids}
            finding.expect(received.issuperset(ids), f"{name}: {len(set(ids) - received)} aborts did not reach the engine core")
    return finding


def engine_dead(run: Run) -> Finding:
    """For a run whose engine core was killed: who was in flight ended with that error, and all it had done but the last step
    is recorded."""
    finding = Finding("engine dead")
    dead = [process for process in run.processes if process.role == "engine-core" and process.died]
    finding.expect(bool(dead), "no engine core was killed")
    finding.expect(any(step.process in dead for step in run.steps), "of the engine core no step is recorded")
    for request in run.requests:
        if any(stay.t_end is None and stay.process in dead for stay in request.stays):
            outcome = request.close.outcome if request.close else "still open"
            finding.equal(f"{_name(request)} in flight", outcome=outcome, expected="engine_dead")
    received = [bag for bag in run.bags if bag.sort.trace is not None]
    behind = sum(bag.step is None for bag in received)
    finding.expect(behind <= 1, f"{behind} bags were received whose step is not recorded")
    return finding


def nothing_lost(run: Run) -> Finding:
    """No record is missing but the last of a process that was killed."""
    finding = Finding("nothing lost")
    threads = sum(len(process.threads) for process in run.processes if not process.ended)
    finding.expect(run.torn <= threads, f"{run.torn} spools end in the middle of a frame, {threads} without a farewell")
    finding.expect(run.unknown == 0, f"{run.unknown} records are of a newer version")
    killed = any(process.died and process.role == "engine-core" for process in run.processes)
    workers = sum(process.role == "worker" for process in run.processes)
    in_flight = STEPS_IN_FLIGHT * workers if killed else 0  # recorded by workers before the core wrote its own part down
    finding.expect(run.unclaimed <= in_flight or _runs(run), f"{run.unclaimed} records belong to nothing")
    for request in filter(_level, run.requests):
        _whole(finding, request, _runs(run))
    for _, dropped in run.dropped:
        finding.expect(False, f"{dropped.count} dropped: {dropped.reason}")
    return finding


def _whole(finding: Finding, request: RequestJourney, runs: bool) -> None:
    """A request's way in and out: tokenised, posted and received, and out of each engine core that ended in order."""
    name, close = _name(request), request.close
    if close is not None:
        tokenised = sum(part.num_prompt_tokens for part in request.tokenised)
        finding.equal(f"{name} prompt", close=close.num_prompt_tokens, tokenised=tokenised)
    if close is not None and close.outcome == "finished" and not runs:
        received = sum(stay.receive is not None for stay in request.stays)
        finding.equal(f"{name} on its way in", posted=max(len(request.posts), 1), received=received)
    endless = sum(stay.t_end is None and stay.process.ended and not stay.process.died for stay in request.stays)
    finding.expect(not endless, f"{name}: {endless} of its stays in the engine core have no end")


def _runs(run: Run) -> bool:
    """It is still written: of its spools some were read a moment before others."""
    return any(process.alive for process in run.processes)


def _level(request: RequestJourney) -> int:
    """The level of which all is recorded: it may have been lowered while the request ran."""
    return request.accept.level if request.close is None else min(request.accept.level, request.close.level)


def _name(request: RequestJourney) -> str:
    return f"request {request.accept.external_id}"
