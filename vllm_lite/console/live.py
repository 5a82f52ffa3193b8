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
    ending: str = ""
    printed: int = 0  # characters that are out as lines already


class LiveAnswers:
    """Use as a context; call `begin`, `letter` and `end` for each request, `refresh` now and then."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._screen = Screen.of(console)
        self._total = total
        self._answers: dict[int, Answer] = {}
        self._ended = 0
        self._drawn = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> LiveAnswers:
        """Open the live region."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close it; what was still under way stays on the screen as it is."""
        for answer in list(self._answers.values()):
            self.end(answer.number, "left open")
        if self._live is not None:
            self._live.stop()

    def begin(self, number: int, prompt: str) -> None:
        """Request `number` was accepted."""
        self._answers[number] = Answer(number, prompt)
        if self._live is None:
            self._print(number, Text(self._one_line(prompt), DIM), sign=">")

    def letter(self, number: int, text: str, tokens: int) -> None:
        """Its caller took a letter."""
        answer = self._answers[number]
        answer.text += text
        answer.tokens += tokens
        answer.takes += 1
        if self._live is None:
            self._print_lines(answer)
        else:
            self.refresh()

    def end(self, number: int, ending: str) -> None:
        """It is over, for the reason `ending`."""
        answer = self._answers.pop(number)
        answer.ending = ending
        self._ended += 1
        if self._live is None:
            self._print_lines(answer, last=True)
            for line in self._wrap(self._facts(answer)):
                self._print(number, Text(line, DIM), sign="=")
        else:
            self._live.console.print(Group(*self._block(answer)))
            self.refresh(now=True)

    def refresh(self, *, now: bool = False) -> None:
        """Redraw the live region, unless that was done a moment ago."""
        if self._live is not None and (now or time.monotonic() - self._drawn >= FRAME_SECONDS):
            self._drawn = time.monotonic()
            self._live.update(Group(*self._region()), refresh=True)

    # ---- a terminal --------------------------------------------------------------------------------------------------------

    def _region(self) -> Iterator[Text]:
        """The answers under way, as many as fit, and a line that counts the others."""
        room = self._console.height - 2
        for shown, answer in enumerate(self._answers.values()):
            lines = list(self._block(answer, TAIL_LINES))
            if len(lines) > room:
                yield Text(f"{self._screen.glyphs.gap} {len(self._answers) - shown} more under way", DIM)
                break
            room -= len(lines)
            yield from lines
        if self._total > 1:
            yield Text(f"{self._ended} of {self._total} answers ended", DIM)

    def _block(self, answer: Answer, tail: int | None = None) -> Iterator[Text]:
        """Its prompt on one line, then its text, the last `tail` lines of it."""
        yield self._screen.fit(self._head(answer.number, ">").append(self._one_line(answer.prompt), DIM))
        lines = self._wrap(answer.text)
        left_out = tail is not None and len(lines) > tail
        for line in lines[-tail:] if tail is not None else lines:
            yield self._screen.fit(Text("    ").append(line))
        facts = self._facts(answer)
        for line in self._wrap(f"{self._screen.glyphs.ellipsis} {facts}" if left_out else facts):
            yield self._screen.fit(Text("    ").append(line, DIM))

    def _wrap(self, text: str) -> list[str]:
        room = max(10, self._screen.width - 6)
        lines: list[str] = []
        for part in text.splitlines():
            wrapped = Text(self._clean(part)).wrap(self._console, room)
            lines += [line.plain.rstrip() for line in wrapped]
        return lines

    # ---- no terminal -------------------------------------------------------------------------------------------------------

    def _print_lines(self, answer: Answer, *, last: bool = False) -> None:
        """Print what makes whole lines; with `last` the rest too."""
        room = max(10, self._screen.width - 6)
        while rest := answer.text[answer.printed :]:
            cut = rest.find("\n", 0, room + 1)
            if cut < 0 and len(rest) <= room and not last:
                return
            if cut < 0:
                cut = len(rest) if len(rest) <= room else rest.rfind(" ", 1, room + 1)
                cut = cut if cut > 0 else room
            answer.printed += cut
            skip = rest[cut : cut + 1] in ("\n", " ")
            answer.printed += skip
            self._print(answer.number, Text(self._clean(rest[:cut])), sign=self._screen.glyphs.border)

    def _print(self, number: int, text: Text, sign: str) -> None:
        self._console.print(self._screen.fit(self._head(number, sign).append_text(text)))

    # ---- both --------------------------------------------------------------------------------------------------------------

    def _head(self, number: int, sign: str) -> Text:
        return Text().append(f"{request_name(number):<2}{sign} ", f"bold {request_style(number)}")

    def _facts(self, answer: Answer) -> str:
        facts = f"{count(answer.tokens, 'token')} in {count(answer.takes, 'letter')}"
        return f"{facts}, {answer.ending}" if answer.ending else facts

    def _one_line(self, text: str) -> str:
        return " ".join(self._clean(text).split())

    def _clean(self, text: str) -> str:
        """Without anything that a terminal would obey; other than in views, letters of all languages stay."""
        return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def _play(console: Console) -> None:
    words = ("the clerk ", "sorts each bag ", "of letters ", "into the mailboxes ", "of those who wait ")
    with LiveAnswers(console, total=2) as screen:
        screen.begin(0, "What does the clerk do?")
        screen.begin(1, "And when a caller reads slowly?")
        for i in range(36):
            screen.letter(0, words[i % len(words)], 1)
            if i % 3 == 0:
                screen.letter(1, "they are stapled, ", 3)
            time.sleep(0.03 if console.is_terminal else 0)
        screen.end(0, "length")
        screen.end(1, "stop")


if __name__ == "__main__":
    from vllm_lite.console.theme import new_console

    _play(new_console())
