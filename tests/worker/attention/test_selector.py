from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.driver import make_config
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.worker.attention.selector import select_backend
from vllm_lite.worker.probe import AttentionCall

CPU = torch.device("cpu")
CALLS = {"layer": AttentionCall(torch.nn.Identity(), 2, 16, 16, None, None, False, {}, 4)}


def name_of(folder: Path, dtype: torch.dtype, **options: Any) -> str:
    return select_backend(make_config(folder, max_model_len=64, **options), CPU, dtype, CALLS).name


@pytest.mark.parametrize("asked", ["auto", "torch_sdpa"])
def test_a_cpu_runs_the_reference(tiny_model_path: Path, asked: str) -> None:
    assert name_of(tiny_model_path, torch.float32, attention_backend=asked) == "torch_sdpa"


def test_triton_runs_on_a_cpu_in_its_interpreter_alone(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    assert name_of(tiny_model_path, torch.bfloat16, attention_backend="triton") == "triton"
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(VLLMValidationError, match="attention_backend must be 'torch_sdpa' on a CPU"):
        name_of(tiny_model_path, torch.bfloat16, attention_backend="triton")


def test_triton_knows_no_float64(tiny_model_path: Path) -> None:
    with pytest.raises(VLLMValidationError, match="attention_backend must be 'torch_sdpa' for float64; got 'triton'"):
        name_of(tiny_model_path, torch.float64, attention_backend="triton")


def test_compile_needs_triton(tiny_model_path: Path) -> None:
    with pytest.raises(VLLMValidationError, match="compile must be False where attention runs on torch_sdpa"):
        name_of(tiny_model_path, torch.float32, compile=True)
