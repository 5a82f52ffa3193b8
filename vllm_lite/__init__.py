"""vLLM V1's engine in small: real processes, real ZMQ, real models, and a stamp on every letter.

Names are resolved lazily, so that a child process imports only its own place.
Mirrors: vllm/__init__.py
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_PLACES = {
    "AsyncEngineArgs": "vllm_lite.engine_args",
    "AsyncLLM": "vllm_lite.frontend.async_llm",
    "CompletionOutput": "vllm_lite.outputs",
    "EngineArgs": "vllm_lite.engine_args",
    "EngineDeadError": "vllm_lite.exceptions",
    "EngineGenerateError": "vllm_lite.exceptions",
    "LLM": "vllm_lite.entrypoints.llm",
    "PoolingParams": "vllm_lite.pooling_params",
    "PoolingRequestOutput": "vllm_lite.outputs",
    "RequestOutput": "vllm_lite.outputs",
    "RequestOutputKind": "vllm_lite.sampling_params",
    "SamplingParams": "vllm_lite.sampling_params",
    "StreamingInput": "vllm_lite.frontend.protocol",
    "VllmConfig": "vllm_lite.config",
}
__all__ = ["__version__", *_PLACES]  # noqa: PLE0604  (the places are strings)


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name == "trace":
        return importlib.import_module("vllm_lite.trace")
    if name not in _PLACES:
        raise AttributeError(f"module 'vllm_lite' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
