"""The request view: all requests on one time axis, and a waterfall of one request over the stations S1 to S9.

Process: whichever prints. Knows: the journey model, the screen. Does not know: files, engines.
`python -m vllm_lite.console.timeline` shows it with a canned run.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from vllm_lite.console import figures
from vllm_lite.console.bars import Interval, TimeScale
from vllm_lite.console.passage import (
    STOPS,
    first_token,
    request_end,
    request_intervals,
    slots,
    stop_label,
    time_span,
)
from vllm_lite.console.theme import DIM, ERROR, PROCESS_NAMES, PROCESS_STYLES, STRONG, Screen, request_name, request_style
from vllm_lite.tracing.journey import RequestJourney, Run
from vllm_lite.tracing.journey.times import ABORT, DECODE, PREFILL, QUEUED, request_visits

LINES = 20  # requests shown on the common axis before the middle is left out
NARROW = 100  # below this width the process column goes
LABEL = 12
FACTS = "prompt  answer  ended by"


class Overview:
    """Every request of a run as one line: queued, prefill, decode. `rows` limits how many (None: all); `first` numbers them."""

    def __init__(self, run: Run, rows: int | None = LINES, first: int = 0) -> None:
        self.run, self.limit, self.first = run, rows, first

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the view."""
        screen = Screen.of(console, options)
        start, end = time_span(self.run)
        requests = list(enumerate(self.run.requests, self.first))
        yield screen.title("requests", figures.count(len(requests), "request"), f"within {figures.span(end - start)}")
        if not requests:
            yield screen.fit(Text("No request was traced in this run.", DIM))
            return
        facts = {number: _facts(request) for number, request in requests}
        name = max(len(request_name(self.first + len(requests))), 1) + 1
        right = max(len(FACTS), *(len(text) for text in facts.values()))
        cells = max(10, screen.width - name - right - 3)
        scale = TimeScale(start, end, cells)
        labels, ticks = scale.ticks()
        yield screen.fit(Text(" " * (name + 1) + labels.ljust(cells) + f"  {FACTS}", DIM))
        hidden = range(0)
        if self.limit is not None and len(requests) > self.limit:
            hidden = range(self.limit - self.limit // 3, len(requests) - self.limit // 3)
        for place, (number, request) in enumerate(requests):
            if place in hidden:
                if place == hidden.start:
                    yield screen.fit(Text(f"{screen.glyphs.gap} {figures.count(len(hidden), 'request')} more", DIM))
                continue
            line = Text().append(request_name(number).ljust(name + 1), f"bold {request_style(number)}")
            line.append_text(_life(request, number, scale, ticks, screen)).append(f"  {facts[number]}", DIM)
            yield screen.fit(line)
        yield screen.fit(_phase_legend(screen))


class Waterfall:
    """One request over the nine stations. A step is shared: S5 to S8 show the whole step, whoever else was in it."""

    def __init__(self, request: RequestJourney, number: int) -> None:
        self.request, self.number = request, number

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the view."""
        screen = Screen.of(console, options)
        request = self.request
        found = request_intervals(request)
        start = request.process.wall(request.accept.t)
        ends = [interval[1] for intervals in found.values() for interval in intervals]
        end = max([request_end(request), *ends])
        yield from self._title(screen, end - start)
        with_process = screen.width >= NARROW
        left = (LABEL if with_process else 0) + LABEL + 7 + 10 + 3
        scale = TimeScale(start, end, max(10, screen.width - left))
        labels, ticks = scale.ticks()
        head = Text(
            (" " * LABEL if with_process else "") + "station".ljust(LABEL) + "times".rjust(7) + "total ms".rjust(10), DIM
        )
        yield screen.fit(head.append(f" {screen.glyphs.border} " + labels))
        process = ""
        for key, intervals in found.items():
            if not intervals:
                continue
            stop = STOPS[key]
            line = Text()
            if with_process:
                line.append(("" if stop.process == process else PROCESS_NAMES[stop.process]).ljust(LABEL), DIM)
            process = stop.process
            line.append_text(stop_label(key, LABEL)).append(f"{len(intervals):,}".rjust(7), DIM)
            line.append(figures.ms(sum(t1 - t0 for t0, t1 in intervals)).rjust(10)).append(f" {screen.glyphs.border} ", DIM)
            line.append_text(_strip(intervals, scale, ticks, PROCESS_STYLES[stop.process], screen))
            yield screen.fit(line)
        yield from self._mailbox(screen)

    def _title(self, screen: Screen, length: int) -> Iterator[Text]:
        request = self.request
        yield screen.title(
            f"request {request_name(self.number)}", screen.printable(request.accept.external_id), figures.span(length)
        )
        line = Text.assemble((f"{request_name(self.number)} ", f"bold {request_style(self.number)}"), _story(request))
        yield screen.fit(line)
        if request.close is not None and request.close.error_message:
            message = f"{request.close.error_type}: {request.close.error_message}"
            yield screen.fit(Text(screen.printable(message), ERROR))

    def _mailbox(self, screen: Screen) -> Iterator[Text]:
        close = self.request.close
        if close is None:
            return
        filled = [slot for slot in slots(self.request) if slot.t_take is not None]
        text = f"mailbox: {figures.count(close.puts, 'put')} = {figures.count(close.takes, 'take')}"
        text += f" + {figures.count(close.staples, 'staple')} + {close.left} left"
        if filled:
            text += f"; longest wait {figures.span(max((slot.t_take or 0) - slot.t_put for slot in filled))}"
        yield screen.fit(Text(text, DIM))


def _strip(intervals: Sequence[Interval], scale: TimeScale, ticks: list[int], style: str, screen: Screen) -> Text:
    """How much of each cell's time was spent here, over a faint grid."""
    line = Text()
    for i, mark in enumerate(scale.strip(intervals, screen.glyphs.levels)):
        if mark == " " and i in ticks:
            line.append(screen.glyphs.grid, DIM)
        else:
            line.append(mark, style)
    return line


def _life(request: RequestJourney, number: int, scale: TimeScale, ticks: list[int], screen: Screen) -> Text:
    visits = list(request_visits(request))
    cells = [screen.glyphs.grid if i in ticks else " " for i in range(scale.cells)]
    styles = [DIM] * scale.cells
    for key, mark in zip((QUEUED, PREFILL, DECODE), screen.glyphs.phases, strict=True):
        for t0, t1 in (visit[1:] for visit in visits if visit[0] == key):
            for i in range(scale.cell(t0), scale.cell(t1) + 1):
                cells[i], styles[i] = mark, request_style(number)
    if not any(key in (QUEUED, PREFILL, DECODE) for key, _, _ in visits):
        cells[scale.cell(request.process.wall(request.accept.t))] = screen.glyphs.bullet
    for t in (t for key, t, _ in visits if key == ABORT):
        cells[scale.cell(t)], styles[scale.cell(t)] = "x", ERROR
    line = Text()
    for mark, style in zip(cells, styles, strict=True):
        line.append(mark, style)
    return line


def _phase_legend(screen: Screen) -> Text:
    line = Text("  ")
    words = ("queued", "prefill: its prompt is computed", "decode: its answer")
    for mark, word in zip(screen.glyphs.phases, words, strict=True):
        line.append(mark, STRONG).append(f" {word}   ", DIM)
    return line.append("x", ERROR).append(" abort", DIM)


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


def _story(request: RequestJourney) -> str:
    close = request.close
    if close is None:
        return "still open where the recording ends"
    text = figures.count(close.num_prompt_tokens, "prompt token")
    if close.num_cached_tokens:
        text += f" ({close.num_cached_tokens} cached)"
    text += f", {figures.count(close.num_output_tokens, 'answer token')}, {ending(request)}"
    if close.stop_reason is not None:
        text += f" at {close.stop_reason!a}"
    if (first := first_token(request)) is not None:
        text += f"; first after {figures.span(first)}"
    return text


if __name__ == "__main__":
    from vllm_lite.console.demo import canned_run
    from vllm_lite.console.theme import new_console

    shown = canned_run()
    new_console().print(Overview(shown))
    for index, journey in enumerate(shown.requests):
        new_console().print(Waterfall(journey, index))
