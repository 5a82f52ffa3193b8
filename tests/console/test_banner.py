from __future__ import annotations

from tests.console.screens import Golden, lines
from vllm_lite.console.banner import MAP, Banner, EngineFacts
from vllm_lite.tracing.stations import STATIONS

FACTS = EngineFacts(
    *("SmolLM2-135M-Instruct", "cpu", "float32", "torch_sdpa", "uni", 2048, 16, 92 << 20, 4001, [4002], 3.14, 3, "/runs/1")
)


def test_golden(golden: Golden) -> None:
    golden("banner", Banner(FACTS))


def test_the_facts() -> None:
    text = lines(Banner(FACTS, show_map=False), 80)
    assert text[1:] == [
        "cpu, float32, torch_sdpa, executor uni, ready after 3.1 s",
        "pids: front end 4001, engine core 4002",
        "KV cache: 2,048 blocks of 16 tokens, 92 MiB",
        "trace level 3, run /runs/1",
    ]


def test_with_several_cores_or_workers_the_processes_have_a_line_of_their_own() -> None:
    text = lines(Banner(FACTS._replace(core_pids=[4002, 4003], worker_pids=[4004, 4005])), 80)
    assert text[2:4] == [
        "pids: front end 4001, engine cores 4002, 4003, workers 4004, 4005",
        "KV cache: 2,048 blocks of 16 tokens, 92 MiB",
    ]
    assert text[5] == "FRONT END  pid 4001                             ENGINE CORE  one of 2"
    (line,) = [line for line in lines(Banner(FACTS._replace(worker_pids=[4004])), 80) if line.startswith("pids")]
    assert line == "pids: front end 4001, engine core 4002, worker 4004"


def test_a_run_directory_is_shown_whole() -> None:
    run_dir = "/var/lib/vllm-lite/" + "a-long-name/" * 12
    text = lines(Banner(FACTS._replace(run_dir=run_dir), show_map=False), 80)
    assert "".join(text[4:]) == f"trace level 3, run {run_dir}"
    assert len(text) == 4 + 3


def test_the_map_has_every_station_under_its_name() -> None:
    text = "\n".join(lines(Banner(FACTS), 80))
    assert all(f"{station.code} {station.name} " in text for station in STATIONS.values())
    told = {code: words for row in MAP for code, words in (row[:2], row[3:]) if code}
    assert told.keys() == STATIONS.keys()
    assert all(words in text for words in told.values())
