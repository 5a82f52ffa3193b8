"""The request view: all requests on one time axis, and a waterfall of one request over the stations S1 to S9.

Process: whichever prints. Knows: the journey model, the screen. Does not know: files, engines.
`python -m vllm_lite.console.timeline` shows it with a canned run.
Mirrors: nothing in vLLM.
"""

from collections.abc import Iterator, Sequence

from rich.text import Text

from vllm_lite.console.figures import TimeScale, count, ms, span
from vllm_lite.console.passage import STOPS, Chart, first_token, request_end, request_intervals, time_span
from vllm_lite.console.theme import DIM, ERROR, STRONG, Screen, View, request_name, request_style
from vllm_lite.tracing.journey import RequestJourney, Run
from vllm_lite.tracing.journey.times import ABORT, DECODE, PREFILL, QUEUED, request_visits
from vllm_lite.tracing.records import Close

LINES = 20  # requests shown on the common axis before the middle is left out
LABEL = 12
FACTS = "prompt  answer  ended by"
PHASES = {QUEUED: "queued", PREFILL: "prefill: its prompt is computed", DECODE: "decode: its answer"}


class Overview(View):
    """Every request of a run as one line: queued, prefill, decode. `rows` limits how many (None: all); `first` numbers them."""

    def __init__(self, run: Run, rows: int | None = LINES, first: int = 0) -> None:
        self.run, self.limit, self.first = run, rows, first

    def _lines(self, screen: Screen) -> Iterator[Text]:
        start, end = time_span(self.run)
        requests = self.run.requests
        yield screen.title("requests", count(len(requests), "request"), f"within {span(end - start)}")
        if not requests:
            yield Text("No request was traced in this run.", DIM)
            return
        facts = [_facts(request) for request in requests]
        name = len(request_name(self.first + len(requests))) + 1
        right = max(len(FACTS), *(len(text) for text in facts))
        scale = TimeScale(start, end, max(10, screen.width - name - right - 3))
        labels, ticks = scale.ticks()
        yield Text(" " * (name + 1) + labels.ljust(scale.cells) + f"  {FACTS}", DIM)
        limit = len(requests) if self.limit is None else self.limit
        hidden = range(limit - limit // 3, len(requests) - limit // 3)
        for place, request in enumerate(requests):
            if place not in hidden:
                number = self.first + place
                line = Text().append(request_name(number).ljust(name + 1), f"bold {request_style(number)}")
                yield line.append_text(_life(request, number, scale, ticks, screen)).append(f"  {facts[place]}", DIM)
            elif place == hidden.start:
                yield Text(f"{screen.glyphs.gap} {count(len(hidden), 'request')} more", DIM)
        legend = Text("  ")
        for mark, meaning in zip(screen.glyphs.phases, PHASES.values(), strict=True):
            legend.append(mark, STRONG).append(f" {meaning}   ", DIM)
        yield legend.append("x", ERROR).append(" abort", DIM)


class Waterfall(View):
    """One request over the nine stations. A step is shared: S5 to S8 show the whole step, whoever else was in it."""

    def __init__(self, request: RequestJourney, number: int) -> None:
        self.request, self.number = request, number

    def _lines(self, screen: Screen) -> Iterator[Text]:
        request, close, name = self.request, self.request.close, request_name(self.number)
        found = {key: intervals for key, intervals in request_intervals(request).items() if intervals}
        start, closed = request.process.wall(request.accept.t), request_end(request)
        end = max([closed, *(t1 for intervals in found.values() for _, t1 in intervals)])  # the core may go on for a while
        yield screen.title(f"request {name}", screen.printable(request.accept.external_id), span(closed - start))
        yield Text.assemble((f"{name} ", f"bold {request_style(self.number)}"), story(request))
        if close is not None and close.error_message:
            yield Text(screen.printable(f"{close.error_type}: {close.error_message}"), ERROR)
        chart = Chart(screen, start, end, LABEL, figures=17)
        yield Text(f"{chart.stations}{'times':>7}{'total ms':>10}{chart.times}", DIM)
        yield from chart.rows(
            (STOPS[key], Text.assemble((f"{len(times):>7,}", DIM), f"{ms(sum(t1 - t0 for t0, t1 in times)):>10}"), times)
            for key, times in found.items()
        )
        if close is not None:
            waits = request.waits
            yield Text(f"mailbox: {mailbox_sum([close])[0]}" + (f"; longest wait {span(max(waits))}" if waits else ""), DIM)


def _life(request: RequestJourney, number: int, scale: TimeScale, ticks: list[int], screen: Screen) -> Text:
    """Its phases on the common axis, each over the one before it, and its aborts."""
    visits = list(request_visits(request))
    cells = [(screen.glyphs.grid if column in ticks else " ", DIM) for column in range(scale.cells)]
    if not any(key in PHASES for key, _, _ in visits):
        cells[scale.cell(request.process.wall(request.accept.t))] = (screen.glyphs.bullet, DIM)
    for phase, mark in zip(PHASES, screen.glyphs.phases, strict=True):
        for t0, t1 in (visit[1:] for visit in visits if visit[0] == phase):
            for column in range(scale.cell(t0), scale.cell(t1) + 1):
                cells[column] = (mark, request_style(number))
    for t in (t for key, t, _ in visits if key == ABORT):
        cells[scale.cell(t)] = ("x", ERROR)
    return Text.assemble(*cells)


def mailbox_sum(closes: Sequence[Close]) -> tuple[str, bool]:
    """How many letters were put into mailboxes, and what became of them; whether that adds up."""
    puts, takes, staples = (sum(getattr(close, name) for close in closes) for name in ("puts", "takes", "staples"))
    left = sum(close.left for close in closes)
    text = f"{count(puts, 'put')} = {count(takes, 'take')}" + (f" + {count(staples, 'staple')}" if staples else "")
    text += f" + {left:,} left, never taken" if left else ""
    holds = puts == takes + staples + left
    return text if holds else f"{text} does not add up", holds


def ending(request: RequestJourney) -> str:
    """How it ended, in a word or two."""
    close = request.close
    if close is None:
        return "open"
    if close.outcome != "finished":
        return close.outcome.replace("_", " ")
    return "+".join(dict.fromkeys(close.finish_reasons)) or "finished"


def _facts(request: RequestJourney) -> str:
    close = request.close
    prompt = close.num_prompt_tokens if close else sum(part.num_prompt_tokens for part in request.tokenised)
    answer = close.num_output_tokens if close else request.num_tokens
    return f"{prompt:>6}  {answer:>6}  {ending(request)}"


def story(request: RequestJourney) -> str:
    """What became of it, in a sentence."""
    close = request.close
    if close is None:
        return "still open where the recording ends"
    cached = f" ({close.num_cached_tokens} cached)" if close.num_cached_tokens else ""
    text = f"{count(close.num_prompt_tokens, 'prompt token')}{cached}"
    text += f", {count(close.num_output_tokens, 'answer token')}, {ending(request)}"
    if close.stop_reason is not None:
        text += f" at {close.stop_reason!a}"
    first = first_token(request)
    return text if first is None else f"{text}; first after {span(first)}"


if __name__ == "__main__":
    from vllm_lite.console.demo import canned_run, show

    shown = canned_run()
    show(Overview(shown))
    for index, journey in enumerate(shown.requests):
        show(Waterfall(journey, index))
