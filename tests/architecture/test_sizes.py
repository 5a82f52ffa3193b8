"""Small enough to read."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.source import line_count, modules

LONGEST_FILE = 350
LONGER = {"engine_core/scheduler.py": 450}
LONGEST_PACKAGE = 22_900  # docstrings and blank lines included; a fence, so that growing beyond it is a decision
LONG_FUNCTION = 45


@pytest.mark.parametrize("name", modules())
def test_a_file_is_read_in_one_sitting(name: str) -> None:
    assert line_count(name) <= LONGER.get(name, LONGEST_FILE)


def test_the_package_stays_small() -> None:
    assert sum(line_count(name) for name in modules()) < LONGEST_PACKAGE


def test_functions_fit_a_screen() -> None:
    lengths = [
        (node.end_lineno or 0) - node.lineno + 1
        for module in modules().values()
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert sum(length < LONG_FUNCTION for length in lengths) >= 0.95 * len(lengths)
