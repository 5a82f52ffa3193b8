"""The totals: what came of the requests, how many tokens, steps, bags and letters there were, and the time at each station.

Process: whichever prints. Knows: the journey model, the screen. Does not know: files, engines.
`python -m vllm_lite.console.totals` shows them for a canned run.
Mirrors: nothing in vLLM.
"""

from collections import Counter
from collections.abc import Iterator
from textwrap import wrap

from rich.text import Text

from vllm_lite.console.figures import SECOND, count, ms, size, span
from vllm_lite.console.passage import STOPS, time_span
from vllm_lite.console.rows import REASONS, fates
from vllm_lite.console.theme import DIM, ERROR, PROCESS_NAMES, PROCESS_STYLES, STRONG, Screen, View
from vllm_lite.console.timeline import ending, mailbox_sum
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.compare import Figures, facts
from vllm_lite.tracing.journey import LATE, Run
from vllm_lite.tracing.journey.times import ABORT, DECODE, PREFILL, QUEUED, WIRE, WIRE_IN, station_times
from vllm_lite.tracing.stations import STATIONS

LABEL = 13
MEANING_FROM = 110  # narrower screens leave the stations' meaning out
MEANINGS = {
    QUEUED: "waits for a step",
    PREFILL: "its prompt is computed",
    DECODE: "its answer, a token a step",
    WIRE_IN: "a request between two processes",
    WIRE: "a bag between two processes",
    ABORT: "given up, until the core hears it",
} | {code: station.meaning for code, station in STATIONS.items()}
FATES = {
    rec.PUT: "into an empty mailbox",
    rec.STAPLED: "stapled to one not taken yet",
    rec.KEPT_BACK: "kept back for a later one",
    LATE: "late (its request was over)",
}
Fact = tuple[str, str, str]  # label, sentence, style


class Totals(View):
    """The figures of a run: sentences, then a table of the stations."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def _lines(self, screen: Screen) -> Iterator[Text]:
        run = self.run
        start, end = time_span(run)
        yield screen.title("totals", count(len(run.requests), "request"), f"within {span(end - start)}")
        for label, text, style in (*_requests(run), *_letters(run), *_calls(run), *_faults(run)):
            head = label
            for row in wrap(screen.printable(text), max(screen.width - LABEL, 1)):
                yield Text().append(head.ljust(LABEL), STRONG).append(row, style)
                head = ""
        yield from self._stations(screen)

    def _stations(self, screen: Screen) -> Iterator[Text]:
        meaning = screen.width >= MEANING_FROM
        head = f"{'station':{LABEL}}{'times':>7}{'mean ms':>11}{'p50 ms':>11}{'p99 ms':>11}{'total ms':>11}"
        yield Text(head + ("   place         what happens there" if meaning else ""), DIM)
        for key, values in station_times(self.run).items():
            if (found := Figures.of(values)) is None:
                continue
            line = STOPS[key].label(LABEL).append(f"{found.visits:>7,}", DIM)
            for value in (found.mean, found.p50, found.p99, found.total):
                line.append(ms(value).rjust(11))
            if meaning:
                process = STOPS[key].process
                line.append(f"   {PROCESS_NAMES[process]:<14}", PROCESS_STYLES[process]).append(MEANINGS[key], DIM)
            yield line


def _requests(run: Run) -> Iterator[Fact]:
    told = facts(run)
    yield "requests", f"{len(run.requests)}: {_most_common(Counter(map(ending, run.requests)))}", ""
    prompts = f"{told['prompt tokens']:,} in prompts ({told['cached tokens']:,} cached)"
    rate = f", {told['answer tokens a second']:,.1f} a second" if told["answer tokens a second"] is not None else ""
    yield "tokens", f"{prompts}, {told['answer tokens']:,} in answers{rate}", ""
    p50, p99 = told["first token, p50 s"], told["first token, p99 s"]
    if p50 is not None and p99 is not None:
        yield "first letter", f"{span(p50 * SECOND)} after accept (p50), {span(p99 * SECOND)} (p99)", ""
    if plans := [step.schedule for step in run.steps]:
        prefills, most = sum(plan.num_prefill > 0 for plan in plans), max(plan.num_requests for plan in plans)
        mean = f"{told['requests in a step']:.1f} requests in a step on the mean, {most} at most"
        yield "steps", f"{len(plans):,}, {prefills:,} with prompts; {mean}", ""
        preempted = count(sum(len(plan.preempted) for plan in plans), "preemption")
        yield "KV cache", f"{max(plan.kv_usage for plan in plans):.1%} used at most; {preempted}", ""


def _letters(run: Run) -> Iterator[Fact]:
    letters, octets = sum(bag.sort.num_outputs for bag in run.bags), sum(bag.sort.body_size for bag in run.bags)
    yield "bags", f"{len(run.bags):,} with {count(letters, 'letter')}, {size(octets)}", ""
    closes, found = [request.close for request in run.requests if request.close], fates(run.bags)
    told = [f"{found[fate]:,} {word}" for fate, word in FATES.items() if found[fate]]
    # The front end puts letters of its own: they tell of an abort.
    own = sum(close.puts for close in closes) - found[rec.PUT] - found[rec.STAPLED]
    told += [f"{own:,} to tell of an abort"] if own > 0 and len(closes) == len(run.requests) else []
    yield "letters", ", ".join(told), ""
    text, holds = mailbox_sum(closes)
    yield "mailboxes", text, "" if holds else ERROR
    reasons = Counter(REASONS.get(abort.reason, abort.reason) for request in run.requests for abort in request.aborts)
    yield "aborts", f"{reasons.total()}: {_most_common(reasons)}" if reasons else "0", ""


def _calls(run: Run) -> Iterator[Fact]:
    """Pauses, sleep and the like, where there were any."""
    calls = Counter(call.told.method for call in run.calls)
    failed = Counter(f"{call.told.method}: {call.told.error[0]}" for call in run.calls if call.told.error)
    if calls:
        told = f"; failed: {_most_common(failed)}" if failed else ""
        text = f"{count(calls.total(), 'utility call')} (methods of the engine core, no requests): {_most_common(calls)}{told}"
        yield "calls", text, ERROR if failed else ""


def _faults(run: Run) -> Iterator[Fact]:
    """Only what went wrong."""
    for _, death in run.deaths:
        how = f": {death.reason}" if death.reason else ""
        yield "dead", f"engine core {death.engine_index} died during the run{how}", ERROR
    lost = [f"{count(dropped.count, 'record')} dropped ({dropped.reason})" for _, dropped in run.dropped]
    lost += [f"{count(run.torn, 'spool')} cut short in its last frame"] if run.torn else []
    lost += [f"{count(run.unclaimed, 'record')} whose beginning is lost"] if run.unclaimed else []
    lost += [f"{count(run.unknown, 'record')} of a newer version"] if run.unknown else []
    if lost:
        yield "not recorded", "; ".join(lost), ERROR


def _most_common(found: Counter[str]) -> str:
    return ", ".join(f"{number} {what}" for what, number in found.most_common())


if __name__ == "__main__":
    from vllm_lite.console.demo import canned_run, show

    show(Totals(canned_run()))
