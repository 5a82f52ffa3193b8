"""The first screen: which engine this is, and the map of the nine stations with the processes they stand in.

Process: whichever prints. Knows: stations, and the engine's facts as words and numbers. Does not know: engine classes.
`python -m vllm_lite.console.banner` shows one.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import NamedTuple

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


class EngineFacts(NamedTuple):
    """What the banner says of an engine; `kv_bytes` is 0 where nobody counts them, `worker_pids` are of workers in processes
    of their own."""

    model: str
    device: str
    dtype: str
    attention: str
    executor: str
    kv_blocks: int
    block_size: int
    kv_bytes: int
    frontend_pid: int
    core_pids: Sequence[int]
    start_seconds: float
    trace_level: int
    run_dir: str
    worker_pids: Sequence[int] = ()


class Banner(View):
    """The facts, and with `show_map` the map and the words of the post office."""

    def __init__(self, facts: EngineFacts, *, show_map: bool = True) -> None:
        self.facts, self.show_map = facts, show_map

    def _lines(self, screen: Screen) -> Iterator[Text]:
        yield screen.title("vllm-lite", screen.printable(self.facts.model))
        for fact in self._facts():
            for line in wrap(screen.printable(fact), screen.width, break_on_hyphens=False):
                yield Text(line, DIM)
        if self.show_map:
            yield from self._map(screen)
            for word, meaning in WORDS.items():
                yield Text.assemble((word.ljust(9), STRONG), (meaning, DIM))

    def _facts(self) -> Iterator[str]:
        facts = self.facts
        engine = f"{facts.device}, {facts.dtype}, {facts.attention}, executor {facts.executor}"
        yield f"{engine}, ready after {facts.start_seconds:.1f} s"
        if not self.show_map or len(facts.core_pids) > 1 or facts.worker_pids:
            named = {"front end": [facts.frontend_pid], "engine core": facts.core_pids, "worker": facts.worker_pids}
            parts = [f"{name}{'s' * (len(pids) > 1)} {', '.join(map(str, pids))}" for name, pids in named.items() if pids]
            yield f"pids: {', '.join(parts)}"
        size = f", {facts.kv_bytes / (1 << 20):,.0f} MiB" if facts.kv_bytes else ""
        yield f"KV cache: {facts.kv_blocks:,} blocks of {facts.block_size} tokens{size}"
        yield f"trace level {facts.trace_level}, run {facts.run_dir}"

    def _map(self, screen: Screen) -> Iterator[Text]:
        """Two columns with the wires between them."""
        pids, half = self.facts.core_pids, max(24, min(40, (screen.width - WAY) // 2))
        head = Text().append("FRONT END", f"bold {PROCESS_STYLES['frontend']}").append(f"  pid {self.facts.frontend_pid}", DIM)
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

    facts = EngineFacts(
        "SmolLM2-135M-Instruct", "cpu", "float32", "torch_sdpa", "uni", 2048, 16, 92 << 20, 4001, [4002], 3.1, 3, "/runs/1"
    )
    show(Banner(facts))
