"""How many engines, workers and front ends there are, and which executor drives the workers.

Process: all. Knows: counts and names. Does not know: processes.
Mirrors: vllm/config/parallel.py
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vllm_lite.config.checks import check_bool, check_int, check_text, refuse

EXECUTOR_BACKENDS = ("uni", "mp", "toy")


@dataclass
class ParallelConfig:
    """Engines (data parallel) and workers (`world_size`) of each.

    `distributed_executor_backend`: "uni" runs the worker inside the engine core's process, "mp" in processes of its own, "toy"
    replaces it by the torch-free toy executor; "module:Class" is an Executor of your own.
    `api_process_rank` is this front end's number among the `api_process_count` that share the engines.
    """

    data_parallel_size: int = 1
    data_parallel_rank: int = 0
    data_parallel_external_lb: bool = False
    world_size: int = 1
    distributed_executor_backend: str = "uni"
    api_process_count: int = 1
    api_process_rank: int = 0

    def __post_init__(self) -> None:
        check_int("data_parallel_size", self.data_parallel_size, 1)
        check_int("data_parallel_rank", self.data_parallel_rank, 0, self.data_parallel_size - 1)
        check_bool("data_parallel_external_lb", self.data_parallel_external_lb)
        if self.data_parallel_rank and not self.data_parallel_external_lb:
            raise refuse("data_parallel_rank", self.data_parallel_rank, "0 without --data-parallel-external-lb")
        check_int("world_size", self.world_size, 1)
        accepted = f"one of {', '.join(EXECUTOR_BACKENDS)}, or an Executor's module:Class"
        backend = check_text("distributed_executor_backend", self.distributed_executor_backend, accepted)
        if backend not in EXECUTOR_BACKENDS and not re.fullmatch(r"[\w.]+:[\w.]+", backend):
            raise refuse("distributed_executor_backend", backend, accepted)
        check_int("api_process_count", self.api_process_count, 1)
        check_int("api_process_rank", self.api_process_rank, 0, self.api_process_count - 1)

    @property
    def engine_indexes(self) -> range:
        """The engine cores behind this front end."""
        if self.data_parallel_external_lb:
            return range(self.data_parallel_rank, self.data_parallel_rank + 1)
        return range(self.data_parallel_size)
