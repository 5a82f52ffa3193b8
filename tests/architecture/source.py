"""The package's source as the architecture tests see it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "vllm_lite"


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package, parsed, by its path relative to the package."""
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def holds_code(module: ast.Module) -> bool:
    """False for an `__init__` that is only a docstring."""
    return len(module.body) > 1


def line_count(name: str) -> int:
    return len((PACKAGE / name).read_text().splitlines())
