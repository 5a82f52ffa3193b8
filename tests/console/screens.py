"""The kinds of screen that every view must look good on, and what a view prints on one."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

from rich.console import Console, RenderableType

# name -> (width, a terminal, colours)
SCREENS = {
    "80": (80, False, False),
    "120": (120, False, False),
    "200": (200, False, False),
    "80.unicode": (80, True, False),
    "120.colour": (120, True, True),
}
Golden = Callable[[str, RenderableType], None]


def screen(width: int, terminal: bool = False, colour: bool = False, height: int = 25) -> Console:
    """A console of this kind that writes into memory and looks at no environment."""
    return Console(
        file=io.StringIO(),
        width=width,
        height=height,
        force_terminal=terminal,
        color_system="truecolor" if colour else None,
        no_color=not colour,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
        _environ={},
    )


def printed(console: Console) -> str:
    """What was written to a console of `screen`."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def render(view: RenderableType, width: int, terminal: bool = False, colour: bool = False) -> str:
    """The view on such a screen."""
    console = screen(width, terminal, colour)
    console.print(view)
    return printed(console)


def without_styles(text: str) -> str:
    """The same without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def lines(view: RenderableType, width: int = 100) -> list[str]:
    """The view's lines on a plain screen, without space at their ends."""
    return [line.rstrip() for line in render(view, width).splitlines()]
