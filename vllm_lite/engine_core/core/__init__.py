"""The engine core: one step after another, and the process around it.

Mirrors: vllm/v1/engine/core.py
"""

from vllm_lite.engine_core.core.engine_core import EngineCore
from vllm_lite.engine_core.core.engine_core_proc import EngineCoreProc

__all__ = ["EngineCore", "EngineCoreProc"]
