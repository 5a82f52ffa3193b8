"""Every kind of record is made at exactly one place of the engine and belongs to one station."""

from __future__ import annotations

import ast
from collections import Counter
from typing import get_args

import pytest

from tests.architecture.source import modules
from vllm_lite.tracing import records
from vllm_lite.tracing.stations import STATIONS

KINDS = {kind.__name__: kind for kind in get_args(records.AnyRecord)}
PLACES_OF_STATIONS = {"frontend": "frontend", "engine-core": "engine_core", "worker": "worker"}
ELSEWHERE = {
    "Execute": "engine_core",  # the executor's own view of the worker's station
    "Takes": "tracing",  # the recorder collects takes as columns and makes one record of them
}


def sites() -> dict[str, list[str]]:
    """The modules that construct each kind, one entry for each call. The console's canned data does not count."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for name, module in modules().items():
        if name.startswith("console/") or name == "tracing/canned.py":
            continue
        imported = imported_kinds(module)
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and (kind := imported.get(ast.unparse(node.func))):
                found[kind].append(name)
    return found


def imported_kinds(module: ast.Module) -> dict[str, str]:
    """How this module spells each kind that it can see."""
    spelled = {}
    for node in ast.walk(module):
        if not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            local = alias.asname or alias.name
            if node.module == "vllm_lite.tracing.records" and alias.name in KINDS:
                spelled[local] = alias.name
            if node.module == "vllm_lite.tracing" and alias.name == "records":
                spelled.update({f"{local}.{kind}": kind for kind in KINDS})
    return spelled


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_one_call_site(kind: str) -> None:
    assert len(sites()[kind]) == 1, sites()[kind]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].STATION])
def test_a_kind_is_made_in_its_stations_process(kind: str) -> None:
    station = STATIONS[KINDS[kind].STATION]
    folders = {name.split("/")[0] for name in sites()[kind]}
    assert folders == {ELSEWHERE.get(kind, PLACES_OF_STATIONS[station.process])}


def test_every_station_has_a_record() -> None:
    assert {kind.STATION for kind in KINDS.values()} == {*STATIONS, ""}


def test_stations_are_nine_and_in_order() -> None:
    assert list(STATIONS) == [f"S{number}" for number in range(1, 10)]


def test_tags_are_unique() -> None:
    tags = Counter(kind.__struct_config__.tag for kind in KINDS.values())
    assert max(tags.values()) == 1
