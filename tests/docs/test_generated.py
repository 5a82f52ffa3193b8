"""The generated pages are what the code says now: `python docs/generate.py` writes them."""

from __future__ import annotations

import importlib.util
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


def test_the_map_is_up_to_date(generate: ModuleType) -> None:
    assert (ROOT / "docs" / "map.md").read_text() == generate.map_page()


def test_every_module_with_code_is_on_the_map(generate: ModuleType) -> None:
    page = generate.map_page()
    assert [name for name, module in modules().items() if holds_code(module) and f"| `{name}` |" not in page] == []


def test_the_stations_page_is_up_to_date(generate: ModuleType) -> None:
    assert (ROOT / "docs" / "stations.md").read_text() == generate.stations_page()
