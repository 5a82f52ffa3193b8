"""One line in the log for each interval: throughput, queue, KV cache, prefix hits.

Process: front end. Knows: sums since the last line. Does not know: when `log()` is called.
Mirrors: vllm/v1/metrics/loggers.py (LoggingStatLogger, AggregatedLoggingStatLogger)
"""

from __future__ import annotations

import logging
import time

from vllm_lite.config import VllmConfig
from vllm_lite.metrics.loggers.base import AggregateStatLoggerBase, StatLoggerBase
from vllm_lite.metrics.stats import IterationStats
from vllm_lite.wire.stats import SchedulerStats

logger = logging.getLogger(__name__)


class _Interval:
    """Sums since the last line, and the newest state of each engine core."""

    def __init__(self) -> None:
        self.states: dict[int, SchedulerStats] = {}
        self._queries = self._hits = 0  # of the prefix cache, since the start
        self._restart()

    def _restart(self) -> None:
        self._start = time.monotonic()
        self._num_prompt_tokens = self._num_generation_tokens = self._num_preempted = 0

    def add(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None, engine_idx: int) -> None:
        """Count one bag."""
        if iteration_stats is not None:
            self._num_prompt_tokens += iteration_stats.num_prompt_tokens
            self._num_generation_tokens += iteration_stats.num_generation_tokens
            self._num_preempted += iteration_stats.num_preempted_reqs
        if scheduler_stats is not None:
            self.states[engine_idx] = scheduler_stats
            if scheduler_stats.prefix_cache_stats is not None:
                self._queries += scheduler_stats.prefix_cache_stats.queries
                self._hits += scheduler_stats.prefix_cache_stats.hits

    def line(self) -> str | None:
        """The interval's line, None where nothing happened; the next interval begins."""
        seconds = max(time.monotonic() - self._start, 1e-9)
        prompt, generation, preempted = self._num_prompt_tokens, self._num_generation_tokens, self._num_preempted
        self._restart()
        states = self.states.values()
        running = sum(state.num_running_reqs for state in states)
        waiting = sum(state.num_waiting_reqs for state in states)
        if not (prompt or generation or running or waiting):
            return None
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
        return ", ".join(parts)


class LoggingStatLogger(StatLoggerBase):
    """One engine core's line. Of several front ends each says which it is: tokens are its own, the rest is all of theirs."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self.engine_index = engine_index
        self.vllm_config = vllm_config
        parallel = vllm_config.parallel_config
        count, rank = parallel.api_process_count, parallel.api_process_rank
        self._front_end = f"front end {rank} of {count}, " if count > 1 else ""
        self._interval = _Interval()

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: None = None,
        engine_idx: int = 0,
    ) -> None:
        """Count one bag."""
        self._interval.add(scheduler_stats, iteration_stats, engine_idx)

    def log(self) -> None:
        """Write the line, where anything happened."""
        line = self._interval.line()
        if line is not None:
            logger.info("%s%s: %s", self._front_end, self._name(), line)

    def log_engine_initialized(self) -> None:
        """Say how much fits."""
        cache = self.vllm_config.cache_config
        if cache.num_gpu_blocks is not None:
            logger.info("KV cache: %d blocks of %d tokens", cache.num_gpu_blocks, cache.block_size)

    def _name(self) -> str:
        return f"engine {self.engine_index}"


class AggregatedLoggingStatLogger(LoggingStatLogger, AggregateStatLoggerBase):
    """One line for all engine cores together: sums, and the mean use of their KV caches."""

    def __init__(self, vllm_config: VllmConfig, engine_indexes: list[int]) -> None:
        super().__init__(vllm_config, -1)
        self.engine_indexes = engine_indexes

    def _name(self) -> str:
        return f"all {len(self.engine_indexes)} engines"
