"""The generated pages are what the code says now: `python docs/generate.py` writes them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.architecture.source import ROOT, holds_code, modules


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stale(page: Path, made: str) -> set[str]:
    """Lines that only one of the two has; all lines where no more than their order differs."""
    kept = page.read_text()
    return set() if kept == made else set(kept.splitlines()) ^ set(made.splitlines()) or set(made.splitlines())


def test_the_map_is_up_to_date(generate: ModuleType) -> None:
    assert stale(ROOT / "docs" / "map.md", generate.map_page()) == set()


def test_every_module_with_code_is_on_the_map(generate: ModuleType) -> None:
    page = generate.map_page()
    assert [name for name, module in modules().items() if holds_code(module) and f"| `{name}` |" not in page] == []


def test_the_stations_page_is_up_to_date(generate: ModuleType) -> None:
    assert stale(ROOT / "docs" / "stations.md", generate.stations_page()) == set()
