from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.attention.plainly import run
from tests.worker.driver import Driver, make_config
from vllm_lite.wire.kv_cache_interface import FullAttentionSpec
from vllm_lite.worker.attention import cpu_decode
from vllm_lite.worker.attention.cpu_decode import exp, kernel, u32
from vllm_lite.worker.attention.interface import PagedLayer
from vllm_lite.worker.attention.metadata import AttentionMetadata
from vllm_lite.worker.attention.torch_sdpa import TorchSdpaBackend

SHAPES = [(6, 2, 8, 8), (5, 1, 16, 6), (9, 3, 64, 64)]
KERNEL_DTYPES = [torch.bfloat16, torch.float32]


@settings(max_examples=100, deadline=None)
@given(
    decodes=st.lists(st.integers(0, 120), min_size=1, max_size=6),
    chunks=st.lists(st.tuples(st.integers(0, 20), st.integers(2, 12)), max_size=2),
    kind=st.fixed_dictionaries(
        {
            "shape": st.sampled_from(SHAPES),
            "dtype": st.sampled_from(KERNEL_DTYPES),
            "block": st.sampled_from([1, 3, 8, 16, 40]),
            "window": st.sampled_from([None, 1, 7, 17, 500]),
            "softcap": st.sampled_from([None, 1.5, 30.0]),
            "sinks": st.booleans(),
        }
    ),
    seed=st.integers(0, 99),
)
def test_it_agrees_on_any_batch(decodes: list[int], chunks: list[tuple[int, int]], kind: dict[str, Any], seed: int) -> None:
    run([*((old, 1) for old in decodes), *chunks], kind, seed)


@numba.njit
def exps(numbers: Any) -> Any:
    return np.array([exp(x) for x in numbers])


def test_exp() -> None:
    numbers = np.concatenate([np.linspace(-87, 0, 100_001), [-1e-30, 0.0]]).astype(np.float32)
    expected = np.exp(numbers.astype(np.float64))
    assert np.abs(exps(numbers) / expected - 1).max() < 3e-7
    assert exps(np.float32([0, -100, -np.inf])).tolist() == [1.0, *[pytest.approx(1.6e-38, rel=0.1)] * 2]
    assert np.isnan(exps(np.float32([np.nan]))).all()


def test_engines_may_run_side_by_side() -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for _ in range(20):
                run([(50, 1)] * 5, {"dtype": KERNEL_DTYPES[seed % 2], "shape": SHAPES[0]}, seed)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
@pytest.mark.parametrize("threads", [2, 3, 50])
def test_work_may_be_shared_by_threads(threads: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(cpu_decode, "WORTH_A_THREAD", 100)
    kind = {"shape": SHAPES[0], "dtype": dtype, "sinks": True, "window": 70}
    run([(60, 1), (0, 1), (200, 1), (5, 1), (3, 4)], kind)
    run([(90, 1)], kind)


def test_an_interrupt_waits_for_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted, over = threading.Event(), threading.Event()
    overtaken: list[bool] = []

    def interrupt(*_: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    def attend(numbers: tuple[int, ...], *_: float) -> None:
        if numbers[1] < numbers[2]:  # else it only stores keys and values
            if numbers[1]:  # it is the last part
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            interrupted.wait()
            overtaken.append(over.wait(0.1))

    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(cpu_decode, "WORTH_A_THREAD", 1)
    monkeypatch.setattr(cpu_decode, "kernel", lambda *_: attend)
    layer, step = one_decode()
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            layer.backend.attend(layer, *step)
    finally:
        signal.signal(signal.SIGINT, before)
    over.set()
    assert overtaken
    assert not any(overtaken)


@pytest.mark.parametrize("error", [RuntimeError("no locator available"), OSError(28, "No space left"), EOFError()])
def test_it_is_compiled_anew_where_it_cannot_be_kept(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def njit(*args: Any, cache: bool = False, **options: Any) -> Any:
        if cache:
            raise error
        return numba.njit(*args, **options)

    monkeypatch.setattr(cpu_decode, "njit", njit)
    assert kernel.__wrapped__(u32, 4, 4, 1).signatures


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_damaged_file_does_not_keep_an_engine_from_starting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, suffix: str
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    kernel.__wrapped__(u32, 4, 4, 1)
    (file,) = tmp_path.rglob(f"*.{suffix}")
    file.write_bytes(file.read_bytes()[:10])
    assert kernel.__wrapped__(u32, 4, 4, 1).signatures


def test_who_tells_numba_not_to_compile_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    monkeypatch.delattr(cpu_decode, "CpuDecode")
    one_decode()


def test_engines_that_start_at_once_never_share_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    kernel.__wrapped__(u32, 4, 4, 1)
    kernel.__wrapped__(u32, 4, 4, 2)
    assert len(list(tmp_path.rglob("*.nbi"))) == 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_nothing_is_left_to_compile_when_an_engine_is_warm(tiny_model_path: Path, dtype: str) -> None:
    driver = Driver(make_config(tiny_model_path, dtype=dtype, max_model_len=64))
    before = kernel.cache_info()
    for name, prompt in {"a": [1, 2, 3], "b": [4] * 20}.items():
        driver.add(name, prompt)
    driver.step({"a": 3, "b": 20})
    driver.step({"a": 1, "b": 1})
    after = kernel.cache_info()
    assert after.hits > before.hits
    assert after.misses == before.misses


def one_decode() -> tuple[PagedLayer, list[torch.Tensor]]:
    """A layer that has begun a step of one sequence's first token, and query, key and value."""
    backend = TorchSdpaBackend(torch.device("cpu"), torch.float32)
    layer = PagedLayer(backend, *backend.allocate(FullAttentionSpec(4, 2, 8, 8, "float32"), 2), None, None)
    backend.begin_step(AttentionMetadata(4, 2, np.arange(3), np.array([1, 2]), np.ones((2, 1), np.int64), np.array([4, 5])))
    return layer, [torch.randn(heads, 2, 8) for heads in (4, 2, 2)]


def test_any_strides_will_do() -> None:
    layer, step = one_decode()
    expected = layer.backend.attend(layer, *step)
    padded = [torch.nn.functional.pad(x, (0, 1))[..., :8] for x in step]
    assert torch.equal(layer.backend.attend(layer, *padded), expected)
    assert torch.equal(layer.backend.attend(layer, *(x.mT.contiguous().mT for x in step)), expected)


def test_another_dtype_is_not_taken_for_the_cache_s() -> None:
    layer, step = one_decode()
    with pytest.raises(AssertionError):
        layer.backend.attend(layer, *(x.bfloat16() for x in step))


def test_only_a_worker_on_a_cpu_imports_numba(tmp_path: Path) -> None:
    code = """
import sys, torch
from vllm_lite.worker.worker import Worker
from vllm_lite.worker.attention.torch_sdpa import TorchSdpaBackend
TorchSdpaBackend(torch.device("meta"), torch.bfloat16), TorchSdpaBackend(torch.device("cpu"), torch.float16)
assert "numba" not in sys.modules
TorchSdpaBackend(torch.device("cpu"), torch.bfloat16)
assert "numba" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
