"""Which attention backend an engine runs on.

Process: worker. Knows: devices, dtypes and the backends' names. Does not know: what a backend does; Triton is imported only
where it is chosen.
Mirrors: vllm/v1/attention/selector.py
"""

import os

import torch

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import refuse
from vllm_lite.worker.attention.interface import AttentionBackend
from vllm_lite.worker.attention.torch_sdpa import TorchSdpaBackend
from vllm_lite.worker.device import dtype_name
from vllm_lite.worker.probe import AttentionCall


def select_backend(
    vllm_config: VllmConfig, device: torch.device, dtype: torch.dtype, calls: dict[str, AttentionCall]
) -> AttentionBackend:
    """The backend that `attention_backend` names; "auto" is triton on CUDA for dtypes it knows, else torch_sdpa.

    Raises VLLMValidationError for triton where it cannot run, and for `compile`, which needs it.
    """
    model_config = vllm_config.model_config
    name, known = model_config.attention_backend, dtype.itemsize <= 4
    if name == "auto":
        name = "triton" if device.type == "cuda" and known else "torch_sdpa"
    if name == "torch_sdpa":
        if model_config.compile:
            raise refuse("compile", True, "False where attention runs on torch_sdpa, which plans each step on the host")
        return TorchSdpaBackend(device, dtype)
    if not known:
        raise refuse("attention_backend", name, f"'torch_sdpa' for {dtype_name(dtype)}")
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise refuse("attention_backend", name, "'torch_sdpa' on a CPU (or set TRITON_INTERPRET=1, for tests)")
    from vllm_lite.worker.attention.triton_backend import TritonBackend

    return TritonBackend(vllm_config, device, dtype, calls)
