"""Stat loggers: who is told of each bag's figures.

Process: front end. Knows: the classes, under the names of vLLM's one module. Does not know: requests.
Mirrors: vllm/v1/metrics/loggers.py
"""

from vllm_lite.metrics.loggers.base import AggregateStatLoggerBase, StatLoggerBase, StatLoggerFactory
from vllm_lite.metrics.loggers.log import AggregatedLoggingStatLogger, LoggingStatLogger
from vllm_lite.metrics.loggers.manager import StatLoggerManager, load_stat_logger_plugin_factories
from vllm_lite.metrics.loggers.prometheus import PrometheusStatLogger

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
