"""Each stop of each tour points at one line of a file that exists, and calls its station by its name."""

from __future__ import annotations

import json
import re

import pytest

from tests.architecture.source import ROOT
from vllm_lite.entrypoints.cli.tour import Stop, find_tours
from vllm_lite.tracing.stations import STATIONS

TOURS = find_tours(ROOT)
STOPS = [pytest.param(stop, id=f"{name}-{n}") for name, tour in TOURS.items() for n, stop in enumerate(tour.steps, 1)]
FOLDERS = {"frontend": "frontend", "engine-core": "engine_core", "worker": "worker"}  # by a station's process


@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_points_at_one_line(stop: Stop) -> None:
    lines = (ROOT / stop.file).read_text().splitlines()
    assert re.search(stop.pattern, lines[stop.line("\n".join(lines))])
    assert not re.search(r"\(\?|\\[AZz]", stop.pattern), "JavaScript reads patterns too"


@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_is_in_its_stations_process(stop: Stop) -> None:
    code, name = re.match(r"(S\d) (\w+): \S", stop.title).groups()  # type: ignore[union-attr]
    station = STATIONS[code]
    assert name == station.name
    assert stop.file.startswith(f"vllm_lite/{FOLDERS[station.process]}/")


@pytest.mark.parametrize("name", TOURS)
def test_a_tour_is_what_the_editor_expects(name: str) -> None:
    made = json.loads((ROOT / "tours" / f"{name}.tour").read_text())
    assert made.keys() == {"$schema", "title", "description", "isPrimary", "steps"}
    for stop in made["steps"]:
        assert stop.keys() == {"title", "file", "pattern", "description"}, "anchored by text, never by a line's number"


@pytest.mark.parametrize("name", TOURS)
def test_a_tour_passes_every_station(name: str) -> None:
    codes = [stop.title[:2] for stop in TOURS[name].steps]
    assert list(dict.fromkeys(codes)) == list(STATIONS)
    assert name != "ordinary_token" or codes == sorted(codes)


def test_one_tour_comes_first() -> None:
    primary = [name for name in TOURS if json.loads((ROOT / "tours" / f"{name}.tour").read_text())["isPrimary"]]
    assert primary == ["ordinary_token"] == list(TOURS)[:1]


def test_the_editor_finds_the_tours() -> None:
    assert json.loads((ROOT / ".vscode" / "settings.json").read_text()) == {"codetour.customTourDirectory": "tours"}
    assert "vsls-contrib.codetour" in json.loads((ROOT / ".vscode" / "extensions.json").read_text())["recommendations"]
