"""A worker that takes longer to build than any test waits."""

from __future__ import annotations

import time

from vllm_lite.config import VllmConfig
from vllm_lite.engine_core.executor.toy import ToyWorker


class SlowWorker(ToyWorker):
    def __init__(self, vllm_config: VllmConfig, rank: int = 0) -> None:
        time.sleep(600)
        super().__init__(vllm_config, rank)
