"""Sends batches from a thread of its own, again and again until they arrive or time is up.

Process: exporter. Knows: batches, the official exporter, retries. Does not know: where spans come from. A batch waits while the
collector is down; nothing is thrown away for lack of room, because the follower stops reading and the spools hold the rest.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from vllm_lite.tracing.spans import Span

RETRY_S = (0.2, 0.5, 1.0, 2.0, 5.0)
GIVE_UP_S = 300.0  # a batch that fails for so long is let go and counted: it may be the batch's own fault


class Batch(NamedTuple):
    """Spans that go out together. `poll` numbers the look at the spools that made the last of them."""

    spans: list[Span]
    poll: int


Export = Callable[[list[Span]], bool]  # sends them; False where they did not arrive


class Sender:
    """Queue and thread. `connect` makes the exporter, in the thread, once there is something to send: its import is slow."""

    def __init__(self, connect: Callable[[], Export], batch_spans: int, queue_spans: int) -> None:
        self._connect = connect
        self._batch_spans, self._queue_spans = batch_spans, queue_spans
        self._queue: deque[Batch] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self.sent = 0
        self.lost = 0  # given up after GIVE_UP_S
        self.waiting = 0  # queued or on their way

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def full(self) -> bool:
        """No more room: whoever makes spans should wait."""
        return self.waiting >= self._queue_spans

    @property
    def done_until(self) -> float:
        """All spans made by polls before this one have arrived."""
        with self._changed:
            return self._queue[0].poll if self._queue else float("inf")

    def put(self, spans: list[Span], poll: int) -> None:
        """Queue `spans`, in batches of the size that the settings ask for."""
        with self._changed:
            for start in range(0, len(spans), self._batch_spans):
                part = spans[start : start + self._batch_spans]
                self._queue.append(Batch(part, poll))
                self.waiting += len(part)
            self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Wait until all is sent, at most `timeout_s`. False where something is left."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self.waiting, max(timeout_s, 0.0))

    def _run(self) -> None:
        try:
            self._send_all()
        except Exception as error:  # its fault must not look like a collector that is slow
            print(f"vllm-lite exporter: cannot send: {error!r}", file=sys.stderr)

    def _send_all(self) -> None:
        export: Export | None = None
        while batch := self._next():
            export = export or self._connect()
            arrived = self._send(export, batch)
            with self._changed:
                self._queue.popleft()
                self.waiting -= len(batch.spans)
                self.sent += len(batch.spans) if arrived else 0
                self.lost += 0 if arrived else len(batch.spans)
                self._changed.notify_all()

    def _next(self) -> Batch | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            return self._queue[0] if self._queue else None

    def _send(self, export: Export, batch: Batch) -> bool:
        started, attempt = time.monotonic(), 0
        while not export(batch.spans):
            if attempt == 0:
                print("vllm-lite exporter: the collector takes no spans; nothing is lost, trying on", file=sys.stderr)
            pause = RETRY_S[min(attempt, len(RETRY_S) - 1)]
            attempt += 1
            if time.monotonic() - started > GIVE_UP_S:
                return False
            time.sleep(pause)
        return True


class LastError(logging.Handler):
    """Keeps what the official exporters log instead of printing it: they repeat themselves at every try."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: deque[str] = deque(maxlen=8)
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self)
        logger.propagate = False

    @property
    def text(self) -> str:
        """The newest message, "" where there was none."""
        return self.texts[-1] if self.texts else ""

    def emit(self, record: logging.LogRecord) -> None:
        """Remember the message."""
        self.texts.append(record.getMessage())
