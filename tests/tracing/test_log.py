from __future__ import annotations

import asyncio
import logging

from vllm_lite.tracing.context import SpanContext
from vllm_lite.tracing.log import TraceIdFilter, logged_as

FORMAT = "%(otelTraceID)s %(otelSpanID)s %(otelTraceSampled)s %(message)s"


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter(FORMAT))
        self.addFilter(TraceIdFilter())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def logger_with(handler: Lines) -> logging.Logger:
    logger = logging.Logger("app")
    logger.addHandler(handler)
    return logger


def test_a_line_names_the_span_it_was_written_in() -> None:
    lines = Lines()
    logger = logger_with(lines)
    logger.warning("before")
    with logged_as(SpanContext("a" * 32, "b" * 16, sampled=True)):
        logger.warning("outer")
        with logged_as(SpanContext("c" * 32, "d" * 16, sampled=False)):
            logger.warning("inner")
        logger.warning("outer again")
    logger.warning("after")
    assert lines.lines == [
        "0 0 False before",
        f"{'a' * 32} {'b' * 16} True outer",
        f"{'c' * 32} {'d' * 16} False inner",
        f"{'a' * 32} {'b' * 16} True outer again",
        "0 0 False after",
    ]


async def test_tasks_do_not_see_each_others_spans() -> None:
    lines = Lines()
    logger = logger_with(lines)

    async def caller(name: str) -> None:
        with logged_as(SpanContext(name * 32, name * 16, sampled=True)):
            await asyncio.sleep(0)
            logger.warning("from %s", name)

    await asyncio.gather(caller("1"), caller("2"))
    assert lines.lines == [f"{name * 32} {name * 16} True from {name}" for name in "12"]
