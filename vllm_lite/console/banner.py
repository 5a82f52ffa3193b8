"""The first screen: which engine this is, and the map of the nine stations with the processes they stand in.

Process: whichever prints. Knows: stations, and the engine's facts as words and numbers. Does not know: engine classes.
`python -m vllm_lite.console.banner` shows one.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from vllm_lite.console.theme import DIM, PROCESS_STYLES, STRONG, Screen
from vllm_lite.tracing.stations import STATIONS

WAY = 16  # cells between the two columns
SHORT = {
    "S1": "a request arrives",
    "S2": "prompt to token ids",
    "S3": "encoded and sent",
    "S4": "decoded, queued",
    "S5": "tokens, KV blocks",
    "S6": "forward, in worker",
    "S7": "packed and sent",
    "S8": "opened, made text",
    "S9": "put, stapled, taken",
}
# Left: the front end, read down for the way in and up for the way out; right: the engine core, the worker within.
_ROWS = (("S1", ""), ("S2", "S4"), ("S3", "S5"), ("", "S6"), ("S9", ""), ("S8", "S7"))
_WAYS = {2: "requests", 5: "bags"}
WORDS = (
    ("bag", "what one engine step made: a letter for each request in it"),
    ("clerk", "the output handler; sorts a bag's letters into mailboxes"),
    ("mailbox", "one slot per request, from which its caller takes"),
    ("staple", "a letter put on one that nobody has taken yet"),
)


class EngineFacts(NamedTuple):
    """What the banner says of an engine; `kv_bytes` is 0 where nobody counts them."""

    model: str
    device: str
    dtype: str
    attention: str
    executor: str
    kv_blocks: int
    block_size: int
    kv_bytes: int
    frontend_pid: int
    core_pids: list[int]
    start_seconds: float
    trace_level: int
    run_dir: str


class Banner:
    """The facts, and with `show_map` the map and the words of the post office."""

    def __init__(self, facts: EngineFacts, *, show_map: bool = True) -> None:
        self.facts, self.show_map = facts, show_map

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the view."""
        screen = Screen.of(console, options)
        yield screen.title("vllm-lite", screen.printable(self.facts.model))
        for line in self._facts():
            yield screen.fit(Text(screen.printable(line), DIM))
        if self.show_map:
            yield from self._map(screen)
            for word, meaning in WORDS:
                yield screen.fit(Text().append(word.ljust(9), STRONG).append(meaning, DIM))

    def _facts(self) -> Iterator[str]:
        facts = self.facts
        engine = f"{facts.device}, {facts.dtype}, {facts.attention}, executor {facts.executor}"
        yield f"{engine}, ready after {facts.start_seconds:.1f} s"
        if not self.show_map:
            cores = ", ".join(f"engine core {pid}" for pid in facts.core_pids)
            yield f"pids: front end {facts.frontend_pid}, {cores}"
        size = f", {facts.kv_bytes / (1 << 20):,.0f} MiB" if facts.kv_bytes else ""
        yield f"KV cache: {facts.kv_blocks:,} blocks of {facts.block_size} tokens{size}"
        yield f"trace level {facts.trace_level}, run {facts.run_dir}"

    def _map(self, screen: Screen) -> Iterator[Text]:
        """Two columns with the wires between them."""
        facts, half = self.facts, max(24, min(40, (screen.width - WAY) // 2))
        core = ", ".join(f"pid {pid}" for pid in facts.core_pids)
        head = Text().append("FRONT END", f"bold {PROCESS_STYLES['frontend']}").append(f"  pid {facts.frontend_pid}", DIM)
        head.append(" " * max(1, half + WAY - head.cell_len))
        head.append("ENGINE CORE", f"bold {PROCESS_STYLES['engine-core']}").append(f"  {core}", DIM)
        yield screen.fit(head)
        for i, (left, right) in enumerate(_ROWS):
            line = _stop(left, half)
            line.append(_way(screen, _WAYS.get(i, ""), towards_core=i == 2), PROCESS_STYLES["wire"])
            yield screen.fit(line.append_text(_stop(right, half)))


def _stop(code: str, width: int) -> Text:
    line = Text()
    if code:
        style = PROCESS_STYLES[STATIONS[code].process]
        line.append(f"{code} ", f"bold {style}").append(f"{STATIONS[code].name} ".ljust(9), style).append(SHORT[code], DIM)
    line.truncate(width)
    return line.append(" " * (width - line.cell_len))


def _way(screen: Screen, what: str, *, towards_core: bool) -> str:
    """The wire between the two processes, with what travels on it."""
    if not what:
        return " " * WAY
    glyphs = screen.glyphs
    body = f" {what} ".center(WAY - 3, glyphs.rule)
    return f" {body}{glyphs.right} " if towards_core else f" {glyphs.left}{body} "


if __name__ == "__main__":
    from vllm_lite.console.theme import new_console

    facts = EngineFacts(
        "SmolLM2-135M-Instruct", "cpu", "float32", "torch_sdpa", "uni", 2048, 16, 92 << 20, 4001, [4002], 3.1, 3, "/runs/1"
    )
    new_console().print(Banner(facts))
