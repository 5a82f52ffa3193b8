from __future__ import annotations

from tests.console.screens import Golden, lines
from vllm_lite.console.banner import MAP, Banner
from vllm_lite.tracing.stations import STATIONS

FACTS = (
    "cpu, float32, torch_sdpa, executor uni, ready after 3.1 s",
    "KV cache: 2,048 blocks of 16 tokens, 92 MiB",
    "trace level 3, run /runs/1",
)
BANNER = Banner("SmolLM2-135M-Instruct", FACTS, 4001, [4002])


def test_golden(golden: Golden) -> None:
    golden("banner", BANNER)


def test_the_facts() -> None:
    text = lines(Banner("tiny", FACTS, 4001, [4002], show_map=False), 80)
    assert text[0].startswith("VLLM-LITE  tiny  ---")
    assert text[1:] == list(FACTS)


def test_of_several_cores_the_map_shows_one() -> None:
    text = lines(Banner("tiny", FACTS, 4001, [4002, 4003]), 80)
    assert text[4] == "FRONT END  pid 4001                             ENGINE CORE  one of 2"


def test_a_run_directory_is_shown_whole() -> None:
    fact = "trace level 3, run /var/lib/vllm-lite/" + "a-long-name/" * 12
    text = lines(Banner("tiny", [fact], 4001, [4002], show_map=False), 80)
    assert "".join(text[1:]) == fact
    assert len(text) == 1 + 3


def test_the_map_has_every_station_under_its_name() -> None:
    text = "\n".join(lines(BANNER, 80))
    assert all(f"{station.code} {station.name} " in text for station in STATIONS.values())
    told = {code: words for row in MAP for code, words in (row[:2], row[3:]) if code}
    assert told.keys() == STATIONS.keys()
    assert all(words in text for words in told.values())
