from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch

from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.worker import device
from vllm_lite.worker.device import (
    collect_garbage,
    dtype_name,
    free_memory,
    keep_freed_memory,
    select_device,
    select_dtype,
    use_cpu_threads,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert select_device("cpu") == select_device("auto") == CPU
    with pytest.raises(VLLMValidationError, match="device must be 'cpu' or 'auto' on this machine"):
        select_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert select_device("cuda") == select_device("auto") == CUDA


@pytest.mark.parametrize(
    ("name", "checkpoint", "where", "native", "expected"),
    [
        ("float64", torch.bfloat16, CPU, True, torch.float64),
        ("bfloat16", None, CPU, False, torch.bfloat16),  # asked for by name: slow, but what was asked for
        ("auto", torch.bfloat16, CPU, True, torch.bfloat16),
        ("auto", torch.bfloat16, CPU, False, torch.float32),
        ("auto", torch.float16, CPU, True, torch.float32),
        ("auto", torch.float16, CUDA, False, torch.float16),
        ("auto", torch.bfloat16, CUDA, False, torch.bfloat16),
        ("auto", None, CPU, True, torch.float32),
        ("auto", torch.float32, CUDA, False, torch.float32),
    ],
)
def test_dtypes(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    checkpoint: torch.dtype | None,
    where: torch.device,
    native: bool,
    expected: torch.dtype,
) -> None:
    monkeypatch.setattr(device, "bfloat16_is_native", lambda: native)
    assert select_dtype(name, checkpoint, where) == expected
    assert dtype_name(expected) == str(expected).split(".")[1]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Six CPUs of three cores, all of them allowed; torch's thread count is put back."""
    before = torch.get_num_threads()
    for cpu in range(6):
        folder = tmp_path / "cpu" / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 3},{cpu % 3 + 3}\n")
    (tmp_path / "cgroup").mkdir()
    monkeypatch.setattr(device, "CPU_TOPOLOGY", tmp_path / "cpu")
    monkeypatch.setattr(device, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(6)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    yield tmp_path
    torch.set_num_threads(before)


def test_threads_are_the_cores_but_one(machine: Path) -> None:
    assert use_cpu_threads() == 2


@pytest.mark.parametrize(
    ("quota", "threads"), [("max 100000", 2), ("200000 100000", 1), ("50000 100000", 1), ("900000 100000", 2)]
)
def test_a_containers_quota_counts(machine: Path, quota: str, threads: int) -> None:
    (machine / "cgroup" / "cpu.max").write_text(quota + "\n")
    assert use_cpu_threads() == threads


def test_affinity_counts(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 3})
    assert use_cpu_threads() == 1


def test_omp_num_threads_stands(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    before = torch.get_num_threads()
    assert use_cpu_threads() == before


def test_free_memory_is_the_less_of_machine_and_container(machine: Path) -> None:
    whole = free_memory(CPU)
    assert whole > 1 << 20
    (machine / "cgroup" / "memory.max").write_text("max\n")
    assert free_memory(CPU) == pytest.approx(whole, rel=0.5)
    (machine / "cgroup" / "memory.max").write_text("1000000\n")
    (machine / "cgroup" / "memory.current").write_text("400000\n")
    assert free_memory(CPU) == 600_000


def test_freed_memory_is_kept_where_the_allocator_can(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_freed_memory()  # glibc's own mallopt takes it
    calls: list[tuple[int, int]] = []

    class Glibc:
        def mallopt(self, parameter: int, value: int) -> int:
            calls.append((parameter, value))
            return 1

    monkeypatch.setattr("ctypes.CDLL", lambda name: Glibc())
    keep_freed_memory()
    assert calls == [(-3, 32 << 20), (-1, 512 << 20)]
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    keep_freed_memory()
    assert len(calls) == 2


def test_garbage_is_found_among_what_was_set_aside() -> None:
    class Ring:
        def __init__(self) -> None:
            self.me = self

    ring = weakref.ref(Ring())
    gc.freeze()
    gc.collect()
    assert ring() is not None
    collect_garbage()
    assert ring() is None
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
    collect_garbage()
    assert gc.get_freeze_count() == 0
