"""Answers while they come: a live region on a terminal, whole lines elsewhere; several at once and never garbled.

Process: front end, between two letters. Knows: names, pieces of text, counts. Does not know: engine classes.
On a terminal the requests under way are redrawn at most ten times a second by whoever calls `refresh`; an answer that has ended
moves above them for good. Elsewhere each request's text comes in lines of its own, as soon as one is full.
`python -m vllm_lite.console.live` plays one.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from vllm_lite.console.figures import count
from vllm_lite.console.theme import DIM, Screen, request_name, request_style

FRAME_SECONDS = 0.1
TAIL_LINES = 4  # of an answer under way


@dataclass
class Answer:
    """One request on the screen."""

    number: int
    prompt: str
    text: str = ""
    tokens: int = 0
    takes: int = 0
    unprinted: str = ""  # the end of its text, as long as it makes no whole line

    @property
    def facts(self) -> str:
        """What its caller has got so far."""
        return f"{count(self.tokens, 'token')} in {count(self.takes, 'letter')}"


class LiveAnswers:
    """Use as a context; call `begin`, `letter` and `end` for each request, `refresh` now and then."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._screen, self._total = console, Screen.of(console), total
        self._room = max(10, self._screen.width - 6)  # for text, in cells
        self._answers: dict[int, Answer] = {}
        self._ended, self._drawn = 0, 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> LiveAnswers:
        """Open the live region."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close it; what was still under way stays on the screen as it is."""
        for number in list(self._answers):
            self.end(number, "left open")
        if self._live is not None:
            self._live.stop()

    def begin(self, number: int, prompt: str) -> None:
        """Request `number` was accepted."""
        self._answers[number] = Answer(number, " ".join(_clean(prompt).split()))
        if self._live is None:
            self._print(number, ">", self._answers[number].prompt, DIM)

    def letter(self, number: int, text: str, tokens: int) -> None:
        """Its caller took a letter."""
        answer = self._answers[number]
        answer.text += text
        answer.unprinted += text
        answer.tokens += tokens
        answer.takes += 1
        if self._live is None:
            self._print_lines(answer)
        else:
            self.refresh()

    def end(self, number: int, ending: str) -> None:
        """It is over, for the reason `ending`."""
        answer = self._answers.pop(number)
        self._ended += 1
        facts = f"{answer.facts}, {ending}"
        if self._live is None:
            self._print_lines(answer, last=True)
            for line in self._wrap(facts):
                self._print(number, "=", line, DIM)
        else:
            self._console.print(Group(*self._block(answer, self._wrap(answer.text), facts)))
            self.refresh(now=True)

    def refresh(self, *, now: bool = False) -> None:
        """Redraw the live region, unless that was done a moment ago."""
        if self._live is not None and (now or time.monotonic() - self._drawn >= FRAME_SECONDS):
            self._drawn = time.monotonic()
            self._live.update(Group(*self._region()), refresh=True)

    # ---- a terminal --------------------------------------------------------------------------------------------------------

    def _region(self) -> Iterator[Text]:
        """The answers under way, as many as fit, and a line that counts the others."""
        room, glyphs = self._console.height - 2, self._screen.glyphs
        for shown, answer in enumerate(self._answers.values()):
            lines, facts = self._wrap(answer.text), answer.facts
            if len(lines) > TAIL_LINES:
                lines, facts = lines[-TAIL_LINES:], f"{glyphs.ellipsis} {facts}"
            block = list(self._block(answer, lines, facts))
            if len(block) > room:
                yield Text(f"{glyphs.gap} {len(self._answers) - shown} more under way", DIM)
                break
            room -= len(block)
            yield from block
        if self._total > 1:
            yield Text(f"{self._ended} of {self._total} answers ended", DIM)

    def _block(self, answer: Answer, lines: list[str], facts: str) -> Iterator[Text]:
        yield self._line(answer.number, ">", answer.prompt, DIM)
        for line in lines:
            yield self._screen.fit(Text(f"    {line}"))
        for line in self._wrap(facts):
            yield self._screen.fit(Text(f"    {line}", DIM))

    # ---- no terminal -------------------------------------------------------------------------------------------------------

    def _print_lines(self, answer: Answer, *, last: bool = False) -> None:
        """Print what makes whole lines; with `last` the rest too."""
        while rest := answer.unprinted:
            line, newline, after = rest.partition("\n")
            if len(line) > self._room:
                cut = line.rfind(" ", 1, self._room + 1)
                line = line[: cut if cut > 0 else self._room]
                after = rest[len(line) :].removeprefix(" ")
            elif not newline and not last:
                return
            answer.unprinted = after
            self._print(answer.number, self._screen.glyphs.border, _clean(line))

    def _print(self, number: int, sign: str, text: str, style: str = "") -> None:
        self._console.print(self._line(number, sign, text, style))

    # ---- both --------------------------------------------------------------------------------------------------------------

    def _line(self, number: int, sign: str, text: str, style: str) -> Text:
        head = (f"{request_name(number):<2}{sign} ", f"bold {request_style(number)}")
        return self._screen.fit(Text.assemble(head, (text, style)))

    def _wrap(self, text: str) -> list[str]:
        lines = [line for part in text.splitlines() for line in Text(_clean(part)).wrap(self._console, self._room)]
        return [line.plain.rstrip() for line in lines]


def _clean(text: str) -> str:
    """Without anything that a terminal would obey; other than in views, letters of all languages stay."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


if __name__ == "__main__":
    from vllm_lite.console.theme import new_console

    words = ("the clerk ", "sorts each bag ", "of letters ", "into the mailboxes ", "of those who wait ")
    terminal = new_console()
    with LiveAnswers(terminal, total=2) as screen:
        screen.begin(0, "What does the clerk do?")
        screen.begin(1, "And when a caller reads slowly?")
        for i in range(36):
            screen.letter(0, words[i % len(words)], 1)
            if i % 3 == 0:
                screen.letter(1, "they are stapled, ", 3)
            time.sleep(0.03 if terminal.is_terminal else 0)
        screen.end(0, "length")
        screen.end(1, "stop")
