"""What every stat logger answers to.

Process: front end, on the event loop. Knows: the calls. Does not know: where the figures go.
Mirrors: vllm/v1/metrics/loggers.py (StatLoggerBase, AggregateStatLoggerBase)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from vllm_lite.config import VllmConfig
from vllm_lite.metrics.stats import IterationStats
from vllm_lite.wire.stats import SchedulerStats


class StatLoggerBase(ABC):
    """Told of one engine core's bags. Your own: pass the class, or any callable with these two arguments, as a stat logger."""

    @abstractmethod
    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None: ...

    @abstractmethod
    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: None = None,
        engine_idx: int = 0,
    ) -> None:
        """One bag's figures. Called on the event loop, so it must not wait for anything."""

    @abstractmethod
    def log_engine_initialized(self) -> None:
        """The engine is ready; the configuration now says how large its KV cache is."""

    def log(self) -> None:  # noqa: B027  (most have nothing to do)
        """Report what came since the last call."""

    def record_sleep_state(self, is_sleeping: int, level: int) -> None:  # noqa: B027  (most have nothing to do)
        """The engine fell asleep at this level, or (0, 0) is awake again."""

    def record_admission_rejection(self, reason: str) -> None:  # noqa: B027  (most have nothing to do)
        """A request was turned away because too much waits."""


class AggregateStatLoggerBase(StatLoggerBase):
    """Told of all engine cores' bags."""

    @abstractmethod
    def __init__(self, vllm_config: VllmConfig, engine_indexes: list[int]) -> None: ...


StatLoggerFactory = Callable[[VllmConfig, int], StatLoggerBase] | type[AggregateStatLoggerBase]
