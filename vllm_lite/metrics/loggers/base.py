"""What every stat logger answers to, and the two that write a line into the log for each interval.

Process: front end, on the event loop. Knows: the calls, sums since the last line. Does not know: when `log()` is called.
Mirrors: vllm/v1/metrics/loggers.py (StatLoggerBase, LoggingStatLogger and their aggregates)
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from vllm_lite.config import VllmConfig
from vllm_lite.metrics.stats import IterationStats
from vllm_lite.wire.stats import SchedulerStats

logger = logging.getLogger(__name__)


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


class LoggingStatLogger(StatLoggerBase):
    """One engine core's line. Of several front ends each says which it is: tokens are its own, the rest is all of theirs."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self.vllm_config = vllm_config
        self._name = f"engine {engine_index}"
        self._states: dict[int, SchedulerStats] = {}  # the newest of each engine core
        self._queries = self._hits = 0  # of the prefix cache, since the start
        self._begin()

    def _begin(self) -> None:
        self._start = time.monotonic()
        self._num_prompt_tokens = self._num_generation_tokens = self._num_preempted = 0

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: None = None,
        engine_idx: int = 0,
    ) -> None:
        """Count one bag."""
        if iteration_stats is not None:
            self._num_prompt_tokens += iteration_stats.num_prompt_tokens
            self._num_generation_tokens += iteration_stats.num_generation_tokens
            self._num_preempted += iteration_stats.num_preempted_reqs
        if scheduler_stats is not None:
            self._states[engine_idx] = scheduler_stats
            if scheduler_stats.prefix_cache_stats is not None:
                self._queries += scheduler_stats.prefix_cache_stats.queries
                self._hits += scheduler_stats.prefix_cache_stats.hits

    def log(self) -> None:
        """Write the line, where anything happened; the next interval begins."""
        seconds = max(time.monotonic() - self._start, 1e-9)
        prompt, generation, preempted = self._num_prompt_tokens, self._num_generation_tokens, self._num_preempted
        self._begin()
        states = self._states.values()
        running = sum(state.num_running_reqs for state in states)
        waiting = sum(state.num_waiting_reqs for state in states)
        if not (prompt or generation or running or waiting):
            return
        usage = sum(state.kv_cache_usage for state in states) / max(len(states), 1)
        parts = [
            f"{prompt / seconds:.1f} prompt tokens/s",
            f"{generation / seconds:.1f} generation tokens/s",
            f"running {running} requests, waiting {waiting}",
            f"KV cache used {100 * usage:.1f} %",
        ]
        if preempted:
            parts.append(f"preempted {preempted}")
        if self._queries:
            parts.append(f"prefix cache hits {100 * self._hits / self._queries:.1f} %")
        parallel = self.vllm_config.parallel_config
        count, rank = parallel.api_process_count, parallel.api_process_rank
        front_end = f"front end {rank} of {count}, " if count > 1 else ""
        logger.info("%s%s: %s", front_end, self._name, ", ".join(parts))

    def log_engine_initialized(self) -> None:
        """Say how much fits."""
        cache = self.vllm_config.cache_config
        if cache.num_gpu_blocks is not None:
            logger.info("KV cache: %d blocks of %d tokens", cache.num_gpu_blocks, cache.block_size)


class AggregatedLoggingStatLogger(LoggingStatLogger, AggregateStatLoggerBase):
    """One line for all engine cores together: sums, and the mean use of their KV caches."""

    def __init__(self, vllm_config: VllmConfig, engine_indexes: list[int]) -> None:
        super().__init__(vllm_config)
        self._name = f"all {len(engine_indexes)} engines"
