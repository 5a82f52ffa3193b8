"""Stat loggers: hands each bag's figures to every one of them.

Process: front end, on the event loop. Knows: which loggers there are, per engine core or for all. Does not know: what they do.
Mirrors: vllm/v1/metrics/loggers.py
"""

import logging
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any, cast

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import refuse
from vllm_lite.metrics.loggers.base import (
    AggregatedLoggingStatLogger,
    AggregateStatLoggerBase,
    LoggingStatLogger,
    StatLoggerBase,
    StatLoggerFactory,
)
from vllm_lite.metrics.loggers.prometheus import PrometheusStatLogger
from vllm_lite.metrics.stats import IterationStats
from vllm_lite.wire.stats import SchedulerStats

__all__ = [
    "AggregateStatLoggerBase",
    "AggregatedLoggingStatLogger",
    "LoggingStatLogger",
    "PrometheusStatLogger",
    "StatLoggerBase",
    "StatLoggerFactory",
    "StatLoggerManager",
    "load_stat_logger_plugin_factories",
]

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
        factories = list(custom_stat_loggers)
        if enable_default_loggers:
            factories.append(AggregatedLoggingStatLogger if aggregate_engine_logging else LoggingStatLogger)
        if not any(_is_a(factory, PrometheusStatLogger) for factory in factories):
            factories.append(PrometheusStatLogger)
        self._loggers: list[tuple[int | None, StatLoggerBase]] = []  # with the engine core's index, None: of all
        for factory in factories:
            if not callable(factory):
                raise refuse("stat_loggers", factory, "subclasses of StatLoggerBase, or callables that make one")
            make = cast(Callable[[VllmConfig, Any], StatLoggerBase], factory)
            if _is_a(factory, AggregateStatLoggerBase):
                self._loggers.append((None, make(vllm_config, list(engine_idxs))))
            else:
                self._loggers += [(index, make(vllm_config, index)) for index in engine_idxs]
        self.prometheus = next(one for _, one in self._loggers if isinstance(one, PrometheusStatLogger))

    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None, engine_idx: int = 0
    ) -> None:
        """One bag of engine core `engine_idx`."""
        self._tell("record", scheduler_stats, iteration_stats, None, engine_idx, of_core=engine_idx)

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


def load_stat_logger_plugin_factories() -> list[StatLoggerFactory]:
    """The stat loggers that installed packages offer in the entry-point group `vllm_lite.stat_logger_plugins`."""
    factories: list[StatLoggerFactory] = []
    for entry_point in entry_points(group=PLUGIN_GROUP):
        plugin = entry_point.load()
        if not _is_a(plugin, StatLoggerBase):
            raise refuse(f"plugin {entry_point.name}", plugin, f"a subclass of StatLoggerBase, in {entry_point.value}")
        factories.append(plugin)
    return factories


def _is_a(factory: object, base: type[Any]) -> bool:
    return isinstance(factory, type) and issubclass(factory, base)
