"""`vllm-lite tour NAME`: a walk through the code in the terminal, one stop after another.

Process: its own. Knows: CodeTour files, which an editor shows as well, and the sources they point into. Does not know: engines.
Mirrors: nothing in vLLM.
"""

import argparse
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from vllm_lite.config.checks import refuse
from vllm_lite.console.theme import DIM, PROCESS_NAMES, PROCESS_STYLES, STRONG, Screen, new_console
from vllm_lite.entrypoints.cli.command import Commands, add_command
from vllm_lite.tracing.stations import STATIONS

TOUR = """
tour: walk through the code, stop by stop

vllm-lite tour [NAME]

Print a tour: each of its stops with the lines of code that it is about. Visual
Studio Code shows the same tours in the editor, with the CodeTour extension.

examples:
  vllm-lite tour                  which tours there are
  vllm-lite tour ordinary_token   one of them, by its name or number
  vllm-lite tour 2 | less         a screen at a time
"""
ROOT = Path(__file__).parents[3]
BEFORE, AFTER = 2, 9  # lines of code shown around the one that a stop points at
MARGIN = 8  # cells left of the code: number and border


class Stop(msgspec.Struct):
    """One stop. `title` begins with its station's code; `pattern` matches one line of `file`, a path in the repository."""

    title: str
    file: str
    pattern: str
    description: str

    def line(self, text: str) -> int:
        """Where it points at in its file's `text`, counted from 0. Raises VLLMValidationError where that is not one place."""
        found = list(re.finditer(self.pattern, text, re.MULTILINE))
        if len(found) != 1:
            raise refuse(f"the pattern of {self.title!r}", self.pattern, f"one that {self.file} holds once")
        return text.count("\n", 0, found[0].start())


class Tour(msgspec.Struct):
    """A CodeTour file, as far as it is used here."""

    title: str
    description: str
    steps: list[Stop]


def add_tour(commands: Commands) -> None:
    """Add `tour` to the commands of `vllm-lite`."""
    parser = add_command(commands, run, TOUR)
    parser.add_argument("name", metavar="NAME", nargs="?", help="the tour's name or number; without it, list them")


def run(args: argparse.Namespace) -> int:
    """Print it. Raises FileNotFoundError outside a clone of the repository, VLLMValidationError for an unknown tour."""
    tours, console = find_tours(ROOT), new_console()
    if args.name is None:
        for number, (name, tour) in enumerate(tours.items(), 1):
            console.print(Text.assemble((f"{number}  {name}", STRONG), f"  {tour.title}"), soft_wrap=True)
        return 0
    name = list(tours)[int(args.name) - 1] if args.name in map(str, range(1, len(tours) + 1)) else args.name
    if name not in tours:
        raise refuse("NAME", args.name, f"one of {', '.join(tours)}, or the number of one")
    show(console, tours[name], ROOT)
    return 0


def find_tours(root: Path) -> dict[str, Tour]:
    """The tours of the repository at `root`, by name."""
    files = sorted((root / "tours").glob("*.tour"))
    if not files:
        raise FileNotFoundError(f"{root / 'tours'} holds no tours: they come with a clone of the repository, not with a wheel")
    return {file.stem: msgspec.json.decode(file.read_bytes(), type=Tour) for file in files}


def show(console: Console, tour: Tour, root: Path) -> None:
    """Print all stops of `tour`, with code from the sources under `root`."""
    screen = Screen.of(console)
    console.print(screen.heading(tour.title))
    console.print(Text(tour.description, "italic"))
    for number, stop in enumerate(tour.steps, 1):
        text = (root / stop.file).read_text(encoding="utf-8")
        line = stop.line(text)
        console.print(Text())
        console.print(screen.title(*stop.title.split(": ", 1), f"{number} of {len(tour.steps)}"))
        process = STATIONS[stop.title[:2]].process
        where = (PROCESS_NAMES[process], PROCESS_STYLES[process]), (f"  {stop.file}:{line + 1}", DIM)
        console.print(screen.fit(Text.assemble(*where)))
        for row in _code(screen, text.splitlines(), line):
            console.print(row)
        console.print(Text(stop.description))


def _code(screen: Screen, lines: list[str], at: int) -> Iterator[Text]:
    """The lines around `at`, which is marked; one that is too long goes on in the next row."""
    for index in range(max(at - BEFORE, 0), min(at + AFTER + 1, len(lines))):
        mark, style = (screen.glyphs.right, STRONG) if index == at else (screen.glyphs.border, "")
        number = f"{index + 1:>5}"
        for part in _wrap(lines[index], screen.width - MARGIN):
            yield screen.fit(Text.assemble((f"{number:>5} ", DIM), (mark, style or DIM), (f" {part}", style)))
            number, mark = "", screen.glyphs.border


def _wrap(line: str, width: int) -> list[str]:
    if line.endswith("----"):  # a rule of a comment has nothing to go on with
        return [line[: max(width, 1)]]
    deeper = " " * (len(line) - len(line.lstrip()) + 8)
    if len(deeper) >= width:
        deeper = ""
    return textwrap.wrap(line, max(width, 1), subsequent_indent=deeper, break_on_hyphens=False) or [""]
