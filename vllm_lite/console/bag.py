"""One bag under the glass: every stretch of its way from S5 to the mailboxes, in microseconds.

Process: whichever prints. Knows: the journey model, the screen. Does not know: files, engines.
`python -m vllm_lite.console.bag` shows one of a canned run.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from vllm_lite.console import figures
from vllm_lite.console.bars import Interval, TimeScale
from vllm_lite.console.passage import Slot, slots
from vllm_lite.console.theme import DIM, PROCESS_NAMES, PROCESS_STYLES, Screen, request_name, request_style
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import LATE, Bag, Letter, Run, StepJourney

LETTERS = 16  # shown before the rest is counted
NARROW = 100
LABEL = 22


class _Stretch(NamedTuple):
    code: str
    name: str
    process: str
    interval: Interval


class BagView:
    """The bag that the front end counted as `number`. Raises KeyError where the run has none.

    `first` is the number of the run's first request.
    """

    def __init__(self, run: Run, number: int, first: int = 0) -> None:
        self.run, self.first = run, first
        found = [bag for bag in run.bags if bag.sort.bag == number]
        if not found:
            raise KeyError(number)
        self.bag = found[0]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the view."""
        screen = Screen.of(console, options)
        stretches = list(_stretches(self.bag))
        start, done = stretches[0].interval[0], stretches[-1].interval[1]
        sort, step = self.bag.sort, self.bag.step
        facts = [figures.count(sort.num_outputs, "letter"), figures.size(sort.body_size)]
        if step is not None:
            facts.append(f"made by step {step.index} of engine core {sort.engine_index}")
        yield screen.title(f"bag {sort.bag}", *facts, figures.span(done - start))
        process_room = 12 if screen.width >= NARROW else 0
        left = process_room + LABEL + 20 + 3
        scale = TimeScale(start, done + (done - start) // 8, max(10, screen.width - left))
        labels, ticks = scale.ticks()
        head = Text().append(" " * process_room + "station".ljust(LABEL) + "at us".rjust(10) + "took us".rjust(10), DIM)
        yield screen.fit(head.append(f" {screen.glyphs.border} {labels}", DIM))
        process = ""
        for stretch in stretches:
            place = "" if stretch.process == process else PROCESS_NAMES[stretch.process]
            process = stretch.process
            yield screen.fit(self._line(stretch, place.ljust(process_room)[:process_room], scale, ticks, screen))
        yield from self._letters(screen)

    def _line(self, stretch: _Stretch, place: str, scale: TimeScale, ticks: list[int], screen: Screen) -> Text:
        style, (t0, t1) = PROCESS_STYLES[stretch.process], stretch.interval
        line = Text().append(place, DIM).append(f"{stretch.code or '  '} ", f"bold {style}")
        line.append(stretch.name.ljust(LABEL - 3), style if stretch.code else DIM)
        line.append(figures.us(t0 - scale.start).rjust(10), DIM).append(figures.us(t1 - t0).rjust(10))
        line.append(f" {screen.glyphs.border} ", DIM)
        for i, mark in enumerate(scale.strip([stretch.interval], screen.glyphs.levels)):
            line.append(screen.glyphs.grid if mark == " " and i in ticks else mark, DIM if mark == " " else style)
        return line

    def _letters(self, screen: Screen) -> Iterator[Text]:
        numbers = {id(request): i for i, request in enumerate(self.run.requests, self.first)}
        style = PROCESS_STYLES["frontend"]
        for i, letter in enumerate(self.bag.letters[:LETTERS]):
            number = numbers.get(id(letter.request))
            code, station = ("   ", " " * 10) if i else ("S9 ", "mailbox   ")
            line = Text().append(code, f"bold {style}").append(station, style)
            name = "?" if number is None else request_name(number)
            line.append(f"{name} ", "" if number is None else f"bold {request_style(number)}")
            yield screen.fit(line.append(_fate(letter, i)))
        if len(self.bag.letters) > LETTERS:
            rest = figures.count(len(self.bag.letters) - LETTERS, "letter")
            yield screen.fit(Text(f"   {screen.glyphs.gap} {rest} more", DIM))
        if not self.bag.letters:
            yield screen.fit(Text("Single letters are recorded from level 2.", DIM))


def _stretches(bag: Bag) -> Iterator[_Stretch]:
    if bag.step is not None:
        yield from _core(bag.step)
    sort, wall = bag.sort, bag.process.wall
    received = wall(sort.t_received)
    if bag.step is not None and bag.send is not None:
        core, send = bag.step.process.wall, bag.send
        yield _Stretch("", "queued for output", "engine-core", (core(send.t_queued), core(send.t0)))
        yield _Stretch("", "encode", "engine-core", (core(send.t0), core(send.t1)))
        yield _Stretch("", "wire", "wire", (core(send.t1), max(core(send.t1), received)))
    yield _Stretch("S8", "sort: decode", "frontend", (received, wall(sort.t_decoded)))
    end = sort.t_decoded
    for i, (t0, t1, size) in enumerate(sort.slices):
        if i and t0 > end:
            yield _Stretch("", "yield to others", "frontend", (wall(end), wall(t0)))
        yield _Stretch("", f"slice {i + 1}: {figures.count(size, 'letter')}", "frontend", (wall(t0), wall(t1)))
        end = t1
    yield _Stretch("", "aborts, figures", "frontend", (wall(end), wall(sort.t_done)))


def _core(step: StepJourney) -> Iterator[_Stretch]:
    core = step.process.wall
    yield _Stretch("S5", "schedule", "engine-core", (core(step.schedule.t0), core(step.schedule.t1)))
    if step.execute is not None:
        yield _Stretch("S6", "execute", "worker", (core(step.execute.t0), core(step.execute.t1)))
    for process, work in step.works[:1]:
        times = (work.t0, work.t1, work.t2, work.t3)
        for name, t0, t1 in zip(("prepare", "forward", "sample"), times, times[1:], strict=False):
            yield _Stretch("", name, "worker", (process.wall(t0), process.wall(t1)))
    if step.update is not None:
        yield _Stretch("S7", "bag: update", "engine-core", (core(step.update.t0), core(step.update.t1)))


def _fate(letter: Letter, place: int) -> str:
    tokens = figures.count(letter.tokens, "token")
    if letter.fate == LATE:
        return f"late: {tokens} for a request that is gone"
    if letter.fate == rec.KEPT_BACK:
        return f"kept back: {tokens}, to come with a later letter"
    slot = _slot(letter, place)
    if slot is None:
        return f"put: {tokens}"
    taken = "never taken" if slot.t_take is None else f"taken after {figures.span(slot.t_take - slot.t_put)}"
    if letter.fate == rec.STAPLED:
        return f"stapled: {tokens}, one of {slot.letters} letters {taken}"
    return f"put: {tokens}, {taken}"


def _slot(letter: Letter, place: int) -> Slot | None:
    """What the letter lay in the mailbox with."""
    if letter.request is None:
        return None
    index = letter.request.fates.count(rec.PUT, 0, letter.request.letter_index(letter.bag, place) + 1) - 1
    return slots(letter.request)[index] if index >= 0 else None


if __name__ == "__main__":
    from vllm_lite.console.demo import canned_run
    from vllm_lite.console.theme import new_console

    new_console().print(BagView(canned_run(), 3))
