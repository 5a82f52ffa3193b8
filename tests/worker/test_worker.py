from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.worker.driver import Driver, make_config
from vllm_lite.config import DeviceConfig, VllmConfig
from vllm_lite.exceptions import UnsupportedModelError, VLLMValidationError
from vllm_lite.tracing.control_page import ControlPage
from vllm_lite.tracing.reader import RunReader
from vllm_lite.tracing.records import Bye, Phase, Record, Work
from vllm_lite.tracing.run_dir import create_run_dir
from vllm_lite.worker import device
from vllm_lite.worker.worker import CPU_KV_CACHE_BYTES, Worker

TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def test_info_is_plain_and_true(tiny_model_path: Path) -> None:
    info = Worker(make_config(tiny_model_path, dtype="float32")).get_info()
    assert 0 < info.pop("load_seconds") < 60
    assert info == {
        "dtype": "float32",
        "device": "cpu",
        "attention_backend": "torch_sdpa",
        "weights_bytes": 755968,
        "supported_tasks": ["generate", "embed"],
    }


def memory(config: VllmConfig, monkeypatch: pytest.MonkeyPatch, free: int) -> int:
    monkeypatch.setattr(device, "free_memory", lambda _: free)
    return Worker(config).determine_available_memory()


def test_memory_is_what_was_said_else_a_share_of_what_is_free(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(tiny_model_path, dtype="float32")
    assert memory(config, monkeypatch, free=1_000_000) == 900_000
    config.cache_config.gpu_memory_utilization = 0.25
    assert memory(config, monkeypatch, free=1_000_000) == 250_000
    config.cache_config.kv_cache_memory_bytes = 77
    assert memory(config, monkeypatch, free=1_000_000) == 77


def test_memory_is_no_more_than_could_be_used(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    per_token = 4 * 2 * 2 * 16 * 4  # layers, keys and values, heads, width, bytes
    small = make_config(tiny_model_path, dtype="float32", max_model_len=90, max_num_seqs=3)
    assert memory(small, monkeypatch, free=1 << 40) == (3 * 23 + 1) * 4 * per_token
    large = make_config(tiny_model_path, dtype="float32", max_num_seqs=2048)
    assert memory(large, monkeypatch, free=1 << 40) == CPU_KV_CACHE_BYTES


def test_a_missing_device_is_refused(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = replace(make_config(tiny_model_path), device_config=DeviceConfig("cuda"))
    with pytest.raises(VLLMValidationError, match="device"):
        Worker(config)


def test_a_model_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5", "vocab_size": 3, "is_encoder_decoder": true}')
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        Worker(make_config(tmp_path, max_model_len=10))


def records(run_dir: Path) -> list[Record]:
    """What the run's spools hold: the worker's alone."""
    found = list(RunReader(run_dir).poll())
    assert {process.role for process, _ in found} == {"worker"}
    return [record for _, record in found]


def test_start_up_and_traced_steps_are_recorded(tiny_model_path: Path, tmp_path: Path) -> None:
    run_dir = create_run_dir(1, str(tmp_path / "run"))
    page = ControlPage.open(run_dir)
    page.life = True
    driver = Driver(make_config(tiny_model_path, trace_dir=str(run_dir), max_model_len=64))
    driver.add("r", [1, 2, 3])
    driver.step({"r": 3}, trace=TRACE)
    driver.step({"r": 1})  # not traced
    driver.step({"r": 1}, trace=TRACE)
    page.level = 0
    driver.step({"r": 1}, trace=TRACE)
    driver.worker.shutdown()
    driver.worker.shutdown()
    phases, works, rest = [], [], []
    for record in records(run_dir):
        {Phase: phases, Work: works}.get(type(record), rest).append(record)
    assert [phase.name for phase in phases] == ["load_weights", "warm_up"]
    assert [type(record) for record in rest] == [Bye]
    assert [(work.step, work.trace_id, work.parent_span_id, work.rank) for work in works] == [
        (1, "a" * 32, "b" * 16, 0),
        (3, "a" * 32, "b" * 16, 0),
    ]
    assert works[0].span_id != works[1].span_id
    times = [phases[0].t0, phases[0].t1, phases[1].t0, phases[1].t1]
    times += [t for work in works for t in (work.t0, work.t1, work.t2, work.t3)]
    assert times == sorted(times)
    assert [work.device_ns for work in works] == [None, None]


def test_without_tracing_nothing_is_written(tiny_model_path: Path, tmp_path: Path) -> None:
    driver = Driver(make_config(tiny_model_path, max_model_len=64))
    driver.add("r", [1, 2, 3])
    driver.step({"r": 3}, trace=TRACE)
    driver.worker.shutdown()
    assert list(tmp_path.iterdir()) == []
