"""Hands each bag's figures to every stat logger.

Process: front end, on the event loop. Knows: which loggers there are, per engine core or for all. Does not know: what they do.
Mirrors: vllm/v1/metrics/loggers.py (StatLoggerManager, load_stat_logger_plugin_factories)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any, cast

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import refuse
from vllm_lite.metrics.loggers.base import AggregateStatLoggerBase, StatLoggerBase, StatLoggerFactory
from vllm_lite.metrics.loggers.log import AggregatedLoggingStatLogger, LoggingStatLogger
from vllm_lite.metrics.loggers.prometheus import PrometheusStatLogger
from vllm_lite.metrics.stats import IterationStats
from vllm_lite.wire.stats import SchedulerStats

PLUGIN_GROUP = "vllm_lite.stat_logger_plugins"
logger = logging.getLogger(__name__)


class StatLoggerManager:
    """All stat loggers of one engine.

    The log's line and Prometheus are there by default. A subclass of PrometheusStatLogger among `custom_stat_loggers` takes its
    place. `prometheus` is the logger whose registry answers /metrics. A logger that raises is told of by one line and asked no
    more.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        engine_idxs: Sequence[int] = (0,),
        custom_stat_loggers: Sequence[StatLoggerFactory] = (),
        *,
        enable_default_loggers: bool = True,
        aggregate_engine_logging: bool = False,
    ) -> None:
        self.engine_indexes = list(engine_idxs)
        factories = list(custom_stat_loggers)
        if enable_default_loggers:
            factories.append(AggregatedLoggingStatLogger if aggregate_engine_logging else LoggingStatLogger)
        if not any(isinstance(factory, type) and issubclass(factory, PrometheusStatLogger) for factory in factories):
            factories.append(PrometheusStatLogger)
        self._loggers: list[tuple[int | None, StatLoggerBase]] = []  # with the engine core's index, None: of all
        for factory in factories:
            self._add(factory, vllm_config)
        self.prometheus = next(one for _, one in self._loggers if isinstance(one, PrometheusStatLogger))

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: None = None,
        engine_idx: int = 0,
    ) -> None:
        """One bag of engine core `engine_idx`."""
        self._tell("record", scheduler_stats, iteration_stats, mm_cache_stats, engine_idx, of_core=engine_idx)

    def log_engine_initialized(self) -> None:
        """The engine is ready."""
        self._tell("log_engine_initialized")

    def log(self) -> None:
        """Report what came since the last call."""
        self._tell("log")

    def record_sleep_state(self, is_sleeping: int, level: int) -> None:
        """The engine fell asleep at this level, or (0, 0) is awake again."""
        self._tell("record_sleep_state", is_sleeping, level)

    def record_admission_rejection(self, reason: str) -> None:
        """A request was turned away because too much waits."""
        self._tell("record_admission_rejection", reason)

    def _tell(self, method: str, *args: Any, of_core: int | None = None) -> None:
        for entry in tuple(self._loggers):
            if of_core is None or entry[0] in (None, of_core):
                try:
                    getattr(entry[1], method)(*args)
                except Exception:  # whatever a logger does wrong, requests are answered
                    logger.exception("stat logger %s failed and is left out from now on", type(entry[1]).__name__)
                    self._loggers.remove(entry)

    def _add(self, factory: StatLoggerFactory, vllm_config: VllmConfig) -> None:
        if not callable(factory):
            raise refuse("stat_loggers", factory, "subclasses of StatLoggerBase, or callables that make one")
        if isinstance(factory, type) and issubclass(factory, AggregateStatLoggerBase):
            self._loggers.append((None, factory(vllm_config, self.engine_indexes)))
            return
        make = cast(Callable[[VllmConfig, int], StatLoggerBase], factory)
        for index in self.engine_indexes:
            self._loggers.append((index, make(vllm_config, index)))


def load_stat_logger_plugin_factories() -> list[StatLoggerFactory]:
    """The stat loggers that installed packages offer in the entry-point group `vllm_lite.stat_logger_plugins`."""
    factories: list[StatLoggerFactory] = []
    for entry_point in entry_points(group=PLUGIN_GROUP):
        plugin = entry_point.load()
        if not (isinstance(plugin, type) and issubclass(plugin, StatLoggerBase)):
            raise refuse(f"plugin {entry_point.name}", plugin, f"a subclass of StatLoggerBase, in {entry_point.value}")
        factories.append(plugin)
    return factories
