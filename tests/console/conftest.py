"""Golden screens.

`VLLM_LITE_UPDATE_GOLDEN=1 pytest tests/console` writes them anew; look at each before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rich.console import RenderableType

from tests.console.screens import SCREENS, Golden, render

GOLDEN = Path(__file__).parent / "golden"
UPDATE = bool(os.environ.get("VLLM_LITE_UPDATE_GOLDEN"))  # read before the tests' environment is cleaned


@pytest.fixture
def golden() -> Golden:
    """Compare a view with its golden files, one for each kind of screen."""

    def compare(name: str, view: RenderableType) -> None:
        for kind, (width, terminal, colour) in SCREENS.items():
            path, text = GOLDEN / f"{name}.{kind}.txt", render(view, width, terminal, colour)
            if UPDATE:
                GOLDEN.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
            assert text == path.read_text(encoding="utf-8"), f"{path.name} differs; see conftest.py for how to write it anew"

    return compare
