"""The diff: what came of two runs, side by side, then the time at each station and which of the two was faster there.

Process: whichever prints. Knows: two runs compared, the screen. Does not know: files, engines.
`python -m vllm_lite.console.diff` shows it for two canned runs.
Mirrors: nothing in vLLM.
"""

from collections.abc import Iterator, Sequence

from rich.text import Text

from vllm_lite.console.figures import ms
from vllm_lite.console.passage import STOPS
from vllm_lite.console.theme import DIM, STRONG, Screen, View
from vllm_lite.tracing.compare import Pair, compare
from vllm_lite.tracing.journey import Run

LABEL, FACT = 13, 24
ALIKE = 1.1  # below this factor, either way, neither counts as faster
STYLES = {"faster": "#3fbf6f", "slower": "#ff5f5f", "alike": DIM, "": DIM}
GROUPS = ("", "mean ms", "", "", "", "p50 ms", "", "p99 ms", "", "times")
HEADS = ("A", "B", "B/A", "", *"ABABAB")
WIDTHS = (9, 9, 6, 7, 9, 9, 9, 9, 9, 9)
TIMES_FROM = 110  # narrower screens leave out how many visits there were


class Diff(View):
    """Draws two runs beside each other, called A and B; `names` say which they are."""

    def __init__(self, a: Run, b: Run, names: tuple[str, str]) -> None:
        self.difference, self.names = compare(a, b), names

    def _lines(self, screen: Screen) -> Iterator[Text]:
        yield screen.title("diff", "B over A")
        for letter, name in zip("AB", self.names, strict=True):
            yield Text.assemble((letter, STRONG), f"  {screen.printable(name)}")
        yield Text(" " * FACT + f"{'A':>12}{'B':>12}{'B/A':>12}", DIM)
        for pair in self.difference.facts:
            line = Text().append(pair.name.ljust(FACT), STRONG).append(_value(pair.a).rjust(12))
            yield line.append(_value(pair.b).rjust(12)).append(_ratio(pair).rjust(12), DIM)
        columns = len(HEADS) if screen.width >= TIMES_FROM else len(HEADS) - 2
        for first, heads in (("", GROUPS), ("station", HEADS)):
            yield _row(Text(first.ljust(LABEL), DIM), heads[:columns], [DIM] * columns)
        for pair, a, b in self.difference.stops:
            verdict = _verdict(pair)
            values = [ms(pair.a), ms(pair.b), _ratio(pair), verdict]
            values += [ms(a and a.p50), ms(b and b.p50), ms(a and a.p99), ms(b and b.p99)]
            values += [f"{figures.visits if figures else 0:,}" for figures in (a, b)]
            styles = ["", "", STYLES[verdict], STYLES[verdict], *[DIM] * 6]
            yield _row(STOPS[pair.name].label(LABEL), values[:columns], styles)


def _row(line: Text, values: Sequence[str], styles: Sequence[str]) -> Text:
    for value, width, style in zip(values, WIDTHS, styles, strict=False):
        line.append(value.rjust(width), style)
    return line


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"


def _ratio(pair: Pair) -> str:
    return "-" if pair.ratio is None else f"{pair.ratio:.2f}" if pair.ratio < 100 else f"{pair.ratio:,.0f}"


def _verdict(pair: Pair) -> str:
    """What B is, compared with A."""
    if pair.ratio is None:
        return ""
    return "slower" if pair.ratio >= ALIKE else "faster" if pair.ratio <= 1 / ALIKE else "alike"


if __name__ == "__main__":
    from vllm_lite.console.demo import canned_run, show

    show(Diff(canned_run(), canned_run(engine_dies=True), ("a canned run", "the same, but its engine dies")))
