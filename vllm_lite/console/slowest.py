"""The slowest view: the requests that took longest, where the time of each went, and what the mean of all is.

Process: whichever prints. Knows: the journey model, the screen. Does not know: files, engines.
`python -m vllm_lite.console.slowest` shows it with a canned run.
Mirrors: nothing in vLLM.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from rich.text import Text

from vllm_lite.console.figures import count, ms, span
from vllm_lite.console.passage import request_end
from vllm_lite.console.theme import DIM, PROCESS_STYLES, STRONG, Screen, View, request_name, request_style
from vllm_lite.tracing.journey import RequestJourney, Run
from vllm_lite.tracing.journey.times import DECODE, PREFILL, QUEUED, WIRE_IN, stay_visits

WAY_IN, WAY_OUT = "way in", "way out"
# What a request's time is divided into: the stations of each, and its process.
PARTS = {
    WAY_IN: ("S1-S3", "frontend"),
    WIRE_IN: ("", "wire"),
    "S4": ("", "engine-core"),
    QUEUED: ("", "engine-core"),
    PREFILL: ("S5-S7", "engine-core"),
    DECODE: ("S5-S7", "engine-core"),
    WAY_OUT: ("S8, S9", "frontend"),
}
MEAN = "mean"
CELL = 9
TELLING, READER = 0.01, 0.1  # of a request's time: what is less above the mean, or in the mailbox, is not worth a word


class Slowest(View):
    """The `most` slowest requests of a run, by the time from accept to close; `shown` are they, with their numbers."""

    def __init__(self, run: Run, most: int) -> None:
        self.parts = [time_parts(request) for request in run.requests]
        order = sorted(range(len(run.requests)), key=lambda number: -self.parts[number].total())
        self.shown = [(number, run.requests[number]) for number in order[:most]]

    def _lines(self, screen: Screen) -> Iterator[Text]:
        total = len(self.parts)
        yield screen.title("slowest", f"{len(self.shown)} of {count(total, 'request')}", "where their time went, in ms")
        if not self.shown:
            yield Text("No request was traced in this run.", DIM)
            return
        mean = {part: sum(parts[part] for parts in self.parts) / total for part in PARTS}
        width = max(len(MEAN), *(len(request_name(number)) for number, _ in self.shown)) + 1
        codes, names = Text(" " * (width + CELL + 1)), Text(" " * width + "total".rjust(CELL + 1), DIM)
        for part, (code, process) in PARTS.items():
            codes.append(code.rjust(CELL), PROCESS_STYLES[process])
            names.append(part.rjust(CELL), PROCESS_STYLES[process])
        yield codes
        yield names
        heads = [Text(request_name(number).ljust(width), f"bold {request_style(number)}") for number, _ in self.shown]
        for head, (number, _) in zip(heads, self.shown, strict=True):
            yield _figures(head.copy(), self.parts[number])
        yield _figures(Text(MEAN.ljust(width), DIM), mean)
        for head, (number, request) in zip(heads, self.shown, strict=True):
            yield head.append(_why(request, self.parts[number], mean), "not bold default")


def time_parts(request: RequestJourney) -> Counter[str]:
    """Nanoseconds from accept to close by part; of several answers, those of the one that left the engine core last.

    The way out is all that is left: the wire, S8 and S9, and whatever the caller made it wait for.
    """
    stays = sorted(request.stays, key=lambda stay: stay.process.wall(stay.process.t_last if stay.t_end is None else stay.t_end))
    stays = stays[-1:] if request.has_samples else stays
    post = stays[0].post if stays else request.posts[0] if request.posts else None
    start, end = request.process.wall(request.accept.t), request_end(request)
    came = [stay.process.wall(stay.receive.t0) for stay in stays[:1] if stay.receive]  # perhaps before the post was stamped
    found = Counter({WAY_IN: min([request.process.wall(post.t1), *came]) - start if post else 0})
    for stay in stays:
        for stop, t0, t1 in stay_visits(stay):  # the core may hear of an abort when the request is over
            found[stop] += min(t1, end) - min(t0, end)
    found[WAY_OUT] = end - start - found.total()
    return found


def _why(request: RequestJourney, parts: Counter[str], mean: Mapping[str, float]) -> str:
    """What made it slow: the part that is most above the mean, else the longest; and its caller, where that took its time."""
    above, part = max((parts[part] - mean[part], part) for part in PARTS)
    told = f"{part} {span(above)} above the mean"
    if above <= TELLING * parts.total():
        told = f"{max(PARTS, key=parts.__getitem__)} took longest, as in the mean"
    if (lay := sum(request.waits)) > READER * parts.total():
        told += f"; letters waited {span(lay)} for their caller"
    return told


def _figures(line: Text, parts: Mapping[str, float]) -> Text:
    line.append(ms(sum(parts.values())).rjust(CELL + 1), STRONG)
    for part in PARTS:
        line.append(ms(parts[part]).rjust(CELL))
    return line


if __name__ == "__main__":
    from vllm_lite.console.demo import canned_run, show

    show(Slowest(canned_run(), 3))
