"""One bag under the glass: every stretch of its way from S5 to the mailboxes, in microseconds.

Process: whichever prints. Knows: the journey model, the screen. Does not know: files, engines.
`python -m vllm_lite.console.bag` shows one of a canned run.
Mirrors: nothing in vLLM.
"""

from collections.abc import Iterator

from rich.text import Text

from vllm_lite.console.figures import count, size, span, us
from vllm_lite.console.passage import STOPS, Chart, Stop, slots
from vllm_lite.console.theme import DIM, PROCESS_STYLES, Screen, View, request_name, request_style
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import LATE, Bag, Letter, Run
from vllm_lite.tracing.journey.times import WIRE, step_visits

LETTERS = 16  # shown before the rest is counted
LABEL = 22
NO_LETTER = "No letter came of it: its request was gone."
Stretch = tuple[Stop, int, int]  # from, to


class BagView(View):
    """The bag that the front end counted as `number`. Raises KeyError where the run has none.

    `first` is the number of the run's first request.
    """

    def __init__(self, run: Run, number: int, first: int = 0) -> None:
        found = [bag for bag in run.bags if bag.sort.bag == number]
        if not found:
            raise KeyError(number)
        self.bag = found[0]
        self.numbers = {id(request): i for i, request in enumerate(run.requests, first)}

    def _lines(self, screen: Screen) -> Iterator[Text]:
        sort, step = self.bag.sort, self.bag.step
        stretches = list(_stretches(self.bag))
        start, done = stretches[0][1], stretches[-1][2]
        made = [f"made by step {step.index} of engine core {sort.engine_index}"] if step is not None else []
        yield screen.title(
            f"bag {sort.bag}", count(sort.num_outputs, "letter"), size(sort.body_size), *made, span(done - start)
        )
        chart = Chart(screen, start, done + (done - start) // 8, LABEL, figures=20)
        yield Text().append(f"{chart.stations}{'at us':>10}{'took us':>10}", DIM).append(chart.times, DIM)
        rows = []
        for stop, t0, t1 in stretches:
            figures = Text.assemble((f"{us(t0 - start):>10}", DIM), f"{us(t1 - t0):>10}")
            rows.append((stop._replace(name=stop.name.ljust(LABEL - 3)), figures, [(t0, t1)]))
        yield from chart.rows(rows, blank=DIM)
        yield from self._letters(screen)

    def _letters(self, screen: Screen) -> Iterator[Text]:
        letters, style = self.bag.letters, PROCESS_STYLES["frontend"]
        for place, letter in enumerate(letters[:LETTERS]):
            code, station = ("   ", " " * 10) if place else ("S9 ", "mailbox   ")
            number = self.numbers.get(id(letter.request))
            name = ("? ", "") if number is None else (f"{request_name(number)} ", f"bold {request_style(number)}")
            yield Text.assemble((code, f"bold {style}"), (station, style), name, _fate(letter, place))
        if len(letters) > LETTERS:
            yield Text(f"   {screen.glyphs.gap} {count(len(letters) - LETTERS, 'letter')} more", DIM)
        if not letters:
            told = "Single letters are recorded from level 2." if self.bag.sort.num_outputs else NO_LETTER
            yield Text(told, DIM)


def _stretches(bag: Bag) -> Iterator[Stretch]:
    """In the order of time; those in the engine core where its step is known."""
    sort, step, send, wall = bag.sort, bag.step, bag.send, bag.process.wall
    received = wall(sort.t_received)
    if step is not None:
        core = step.process.wall
        for stop, t0, t1 in step_visits(step):
            yield STOPS[stop], t0, t1
        for process, work in step.works[:1]:
            times = [process.wall(t) for t in (work.t0, work.t1, work.t2, work.t3)]
            for name, t0, t1 in zip(("prepare", "forward", "sample"), times, times[1:], strict=False):
                yield Stop("", name, "worker"), t0, t1
        if step.update is not None:
            yield Stop("S7", "bag: update", "engine-core"), core(step.update.t0), core(step.update.t1)
        if send is not None:
            yield Stop("", "queued for output", "engine-core"), core(send.t_queued), core(send.t0)
            yield Stop("", "encode", "engine-core"), core(send.t0), core(send.t1)
            yield STOPS[WIRE], core(send.t1), max(core(send.t1), received)
    yield Stop("S8", "sort: decode", "frontend"), received, wall(sort.t_decoded)
    end = sort.t_decoded
    for i, (t0, t1, letters) in enumerate(sort.slices):
        if i and t0 > end:
            yield Stop("", "yield to others", "frontend"), wall(end), wall(t0)
        yield Stop("", f"slice {i + 1}: {count(letters, 'letter')}", "frontend"), wall(t0), wall(t1)
        end = t1
    yield Stop("", "aborts, figures", "frontend"), wall(end), wall(sort.t_done)


def _fate(letter: Letter, place: int) -> str:
    tokens = count(letter.tokens, "token")
    if letter.fate == LATE:
        return f"late: {tokens} for a request that is gone"
    if letter.fate == rec.KEPT_BACK:
        return f"kept back: {tokens}, to come with a later letter"
    request = letter.request
    puts = request.fates.count(rec.PUT, 0, request.letter_index(letter.bag, place) + 1) if request else 0
    if request is None or not puts:  # what it lay in the mailbox with is not known
        return f"put: {tokens}"
    slot = slots(request)[puts - 1]
    taken = "never taken" if slot.t_take is None else f"taken after {span(slot.t_take - slot.t_put)}"
    if letter.fate == rec.STAPLED:
        return f"stapled: {tokens}, one of {slot.letters} letters {taken}"
    return f"put: {tokens}, {taken}"


if __name__ == "__main__":
    from vllm_lite.console.demo import canned_run, show

    show(BagView(canned_run(), 3))
