"""How many engines and workers there are, and which executor drives the workers.

Process: all. Knows: counts and names. Does not know: processes.
Mirrors: vllm/config/parallel.py
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_lite.config.checks import check_bool, check_choice, check_int, refuse

EXECUTOR_BACKENDS = ("uni", "mp", "toy")


@dataclass
class ParallelConfig:
    """Engines (data parallel) and workers (`world_size`) of each.

    `distributed_executor_backend`: "uni" runs the worker inside the engine core's process, "mp" in processes of its own, "toy"
    replaces it by the torch-free toy executor.
    """

    data_parallel_size: int = 1
    data_parallel_rank: int = 0
    data_parallel_external_lb: bool = False
    world_size: int = 1
    distributed_executor_backend: str = "uni"

    def __post_init__(self) -> None:
        check_int("data_parallel_size", self.data_parallel_size, 1)
        check_int("data_parallel_rank", self.data_parallel_rank, 0, self.data_parallel_size - 1)
        check_bool("data_parallel_external_lb", self.data_parallel_external_lb)
        if self.data_parallel_rank and not self.data_parallel_external_lb:
            raise refuse("data_parallel_rank", self.data_parallel_rank, "0 without --data-parallel-external-lb")
        check_int("world_size", self.world_size, 1)
        check_choice("distributed_executor_backend", self.distributed_executor_backend, EXECUTOR_BACKENDS)
