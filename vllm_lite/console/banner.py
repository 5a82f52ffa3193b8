"""The first screen: which engine this is, and the map of the nine stations with the processes they stand in.

Process: whichever prints. Knows: stations, and the engine's facts as sentences. Does not know: engine classes.
`python -m vllm_lite.console.banner` shows one.
Mirrors: nothing in vLLM.
"""

from collections.abc import Iterator, Sequence
from textwrap import wrap

from rich.text import Text

from vllm_lite.console.theme import DIM, PROCESS_STYLES, STRONG, Screen, View
from vllm_lite.tracing.stations import STATIONS

WAY = 16  # cells between the two columns
# Left: the front end, read down for the way in and up for the way out; then what travels; right: the engine core.
MAP = (
    ("S1", "a request arrives", "", "", ""),
    ("S2", "prompt to token ids", "", "S4", "decoded, queued"),
    ("S3", "encoded and sent", "requests", "S5", "tokens, KV blocks"),
    ("", "", "", "S6", "forward, in worker"),
    ("S9", "put, stapled, taken", "", "", ""),
    ("S8", "opened, made text", "bags", "S7", "packed and sent"),
)
WORDS = {
    "bag": "what one engine step made: a letter for each request in it",
    "clerk": "the output handler; sorts a bag's letters into mailboxes",
    "mailbox": "one slot per request, from which its caller takes",
    "staple": "a letter put on one that nobody has taken yet",
}


class Banner(View):
    """The facts, and with `show_map` the map, with the processes' ids, and the words of the post office."""

    def __init__(self, model: str, facts: Sequence[str], pid: int, core_pids: Sequence[int], *, show_map: bool = True) -> None:
        self.model, self.facts, self.pid, self.core_pids, self.show_map = model, facts, pid, core_pids, show_map

    def _lines(self, screen: Screen) -> Iterator[Text]:
        yield screen.title("vllm-lite", screen.printable(self.model))
        for fact in self.facts:
            for line in wrap(screen.printable(fact), screen.width, break_on_hyphens=False):
                yield Text(line, DIM)
        if self.show_map:
            yield from self._map(screen)
            for word, meaning in WORDS.items():
                yield Text.assemble((word.ljust(9), STRONG), (meaning, DIM))

    def _map(self, screen: Screen) -> Iterator[Text]:
        """Two columns with the wires between them."""
        pids, half = self.core_pids, max(24, min(40, (screen.width - WAY) // 2))
        head = Text().append("FRONT END", f"bold {PROCESS_STYLES['frontend']}").append(f"  pid {self.pid}", DIM)
        head.append(" " * max(1, half + WAY - head.cell_len)).append("ENGINE CORE", f"bold {PROCESS_STYLES['engine-core']}")
        yield head.append(f"  pid {pids[0]}" if len(pids) == 1 else f"  one of {len(pids)}", DIM)
        glyphs, room = screen.glyphs, WAY - 3
        ways = {
            "": " " * WAY,
            "requests": f" {' requests '.center(room, glyphs.rule)}{glyphs.right} ",
            "bags": f" {glyphs.left}{' bags '.center(room, glyphs.rule)} ",
        }
        for left, in_front, parcel, right, behind in MAP:
            line = _stop(left, in_front, half).append(ways[parcel], PROCESS_STYLES["wire"])
            yield line.append_text(_stop(right, behind, half))


def _stop(code: str, short: str, width: int) -> Text:
    line = Text()
    if code:
        style = PROCESS_STYLES[STATIONS[code].process]
        line.append(f"{code} ", f"bold {style}").append(f"{STATIONS[code].name} ".ljust(9), style).append(short, DIM)
    line.truncate(width)
    return line.append(" " * (width - line.cell_len))


if __name__ == "__main__":
    from vllm_lite.console.demo import show

    show(Banner("SmolLM2-135M-Instruct", ["cpu, float32, torch_sdpa", "trace level 3, run /runs/1"], 4001, [4002]))
