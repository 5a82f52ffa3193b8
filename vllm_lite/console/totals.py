"""The totals: what came of the requests, how many tokens, steps, bags and letters there were, and the time at each station.

Process: whichever prints. Knows: the journey model, the screen. Does not know: files, engines.
`python -m vllm_lite.console.totals` shows them for a canned run.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from vllm_lite.console import figures
from vllm_lite.console.figures import count, size, span
from vllm_lite.console.passage import STOPS, first_token, stop_label, time_span
from vllm_lite.console.rows import REASONS, fates
from vllm_lite.console.theme import DIM, ERROR, PROCESS_NAMES, PROCESS_STYLES, STRONG, Screen
from vllm_lite.console.timeline import ending
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.compare import Figures, quantile
from vllm_lite.tracing.journey import LATE, Run
from vllm_lite.tracing.journey.times import ABORT, DECODE, PREFILL, QUEUED, WIRE, WIRE_IN, station_times
from vllm_lite.tracing.stations import STATIONS

LABEL = 13
MEANING_FROM = 110  # narrower screens leave the stations' meaning out


class Totals:
    """The figures of a run: sentences, then a table of the stations."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the view."""
        screen = Screen.of(console, options)
        start, end = time_span(self.run)
        yield screen.title("totals", count(len(self.run.requests), "request"), f"within {span(end - start)}")
        for label, text, style in _facts(self.run):
            yield screen.fit(Text().append(label.ljust(LABEL), STRONG).append(screen.printable(text), style))
        yield from _stations(self.run, screen)


def _facts(run: Run) -> Iterator[tuple[str, str, str]]:
    """(label, sentence, style) of each line."""
    start, end = time_span(run)
    closes = [request.close for request in run.requests if request.close]
    endings = Counter(ending(request) for request in run.requests)
    yield "requests", f"{len(run.requests)}: " + ", ".join(f"{n} {how}" for how, n in endings.most_common()), ""
    prompt, cached = sum(c.num_prompt_tokens for c in closes), sum(c.num_cached_tokens for c in closes)
    answer = sum(c.num_output_tokens for c in closes)
    rate = f", {answer * figures.SECOND / (end - start):,.1f} a second" if end > start else ""
    yield "tokens", f"{prompt:,} in prompts ({cached:,} cached), {answer:,} in answers{rate}", ""
    firsts = sorted(first for request in run.requests if (first := first_token(request)) is not None)
    if firsts:
        yield "first letter", f"{span(quantile(firsts, 0.5))} after accept (p50), {span(quantile(firsts, 0.99))} (p99)", ""
    yield from _steps(run)
    yield from _letters(run)
    yield from _faults(run)


def _steps(run: Run) -> Iterator[tuple[str, str, str]]:
    plans = [step.schedule for step in run.steps]
    if not plans:
        return
    mean, most = sum(plan.num_requests for plan in plans) / len(plans), max(plan.num_requests for plan in plans)
    prefills = sum(plan.num_prefill > 0 for plan in plans)
    yield "steps", f"{len(plans):,}, {prefills:,} with prompts; {mean:.1f} requests in a step on the mean, {most} at most", ""
    preempted = count(sum(len(plan.preempted) for plan in plans), "preemption")
    yield "KV cache", f"{max(plan.kv_usage for plan in plans):.1%} used at most; {preempted}", ""


def _letters(run: Run) -> Iterator[tuple[str, str, str]]:
    bags = run.bags
    yield (
        "bags",
        f"{len(bags):,} with {count(sum(b.sort.num_outputs for b in bags), 'letter')}, "
        + size(sum(b.sort.body_size for b in bags)),
        "",
    )
    found = fates(bags)
    words = {rec.PUT: "into an empty mailbox", rec.STAPLED: "stapled", rec.KEPT_BACK: "kept back", LATE: "late"}
    closes = [request.close for request in run.requests if request.close]
    puts, takes = sum(c.puts for c in closes), sum(c.takes for c in closes)
    told = puts - found[rec.PUT] - found[rec.STAPLED]  # the front end's own letters: they tell of an abort
    own = [f"{told:,} to tell of an abort"] if told > 0 and len(closes) == len(run.requests) else []
    yield "letters", ", ".join([*(f"{found[fate]:,} {word}" for fate, word in words.items()), *own]), ""
    staples, left = sum(c.staples for c in closes), sum(c.left for c in closes)
    holds = puts == takes + staples + left
    text = f"{count(puts, 'put')} = {count(takes, 'take')} + {count(staples, 'staple')} + {left:,} left"
    yield "mailboxes", text + ("" if holds else " does not add up"), "" if holds else ERROR
    aborts = Counter(abort.reason for request in run.requests for abort in request.aborts)
    reasons = ", ".join(f"{n} {REASONS.get(reason, reason)}" for reason, n in aborts.most_common())
    yield "aborts", f"{aborts.total()}" + (f": {reasons}" if reasons else ""), ""
    yield from _calls(run)


def _calls(run: Run) -> Iterator[tuple[str, str, str]]:
    """Pauses, sleep and the like, where there were any."""
    calls = Counter(call.told.method for call in run.calls)
    failed = Counter(f"{call.told.method}: {call.told.error[0]}" for call in run.calls if call.told.error)
    if calls:
        methods = ", ".join(f"{n} {method}" for method, n in calls.most_common())
        told = ", ".join(f"{n} {how}" for how, n in failed.most_common())
        yield "calls", f"{calls.total()}: {methods}" + (f"; failed: {told}" if failed else ""), ERROR if failed else ""


def _faults(run: Run) -> Iterator[tuple[str, str, str]]:
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


def _stations(run: Run, screen: Screen) -> Iterator[Text]:
    head = "station".ljust(LABEL) + "times".rjust(7)
    for name in ("mean ms", "p50 ms", "p99 ms", "total ms"):
        head += name.rjust(11)
    meaning = screen.width >= MEANING_FROM
    yield screen.fit(Text(head + ("   place         what happens there" if meaning else ""), DIM))
    for key, values in station_times(run).items():
        if (found := Figures.of(values)) is not None:
            line = stop_label(key, LABEL).append(f"{found.visits:,}".rjust(7), DIM)
            for value in (found.mean, found.p50, found.p99, found.total):
                line.append(figures.ms(value).rjust(11))
            if meaning:
                process = STOPS[key].process
                line.append(f"   {PROCESS_NAMES[process]:<14}", PROCESS_STYLES[process])
                line.append(STATIONS[key].meaning if key in STATIONS else _MEANINGS[key], DIM)
            yield screen.fit(line)


_MEANINGS = {
    QUEUED: "waits for a step",
    PREFILL: "its prompt is computed",
    DECODE: "its answer, a token a step",
    WIRE_IN: "a request between two processes",
    WIRE: "a bag between two processes",
    ABORT: "given up, until the core hears it",
}


if __name__ == "__main__":
    from vllm_lite.console.demo import canned_run
    from vllm_lite.console.theme import new_console

    new_console().print(Totals(canned_run()))
