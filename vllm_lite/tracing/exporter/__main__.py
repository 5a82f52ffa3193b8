"""`python -m vllm_lite.tracing.exporter RUN_DIR`: follow a run until its engine is gone, send its spans, then tidy up.

Process: exporter, in a session of its own so that Ctrl-C spares it. Knows: when to look, when to stop. Does not know: spans.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing import spool
from vllm_lite.tracing.exporter.follow import Follower
from vllm_lite.tracing.exporter.launch import check_environment
from vllm_lite.tracing.exporter.settings import Settings
from vllm_lite.tracing.run_dir import remove_if_empty
from vllm_lite.tracing.spans import Span
from vllm_lite.tracing.spans.environment import Limits

if TYPE_CHECKING:
    from vllm_lite.tracing.exporter.official import Collector

GC_OBJECTS = 200_000  # between two collections: what is forgotten leaves no cycles, and looking for some took half the time
LAST_LOOKS_S = 0.02
LAST_WORDS_S = 0.3  # of the budget: how long the engine's processes may take to write their last records


class Exporter:
    """One run from its first record to the flush at its end.

    A thread reads and sends by turns: while the collector is down nothing is read, and the spools hold what comes. The main
    thread only waits, so that a collector that hangs cannot hold up the end.
    """

    def __init__(self, run_dir: Path, settings: Settings, limits: Limits, keep: bool) -> None:
        self._run_dir, self._settings, self._limits = run_dir, settings, limits
        self._keep = keep or not settings.enabled  # what was not sent is not thrown away either
        self._follower = Follower(run_dir)
        self._collector: Collector | None = None
        self._sent = self._unsent = 0
        self._all_read = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="exporter", daemon=True)

    def export(self, death_fd: int | None = None) -> None:
        """Follow until the process that holds the other end of `death_fd` is gone; without one, the run is already over. Then
        read the last words and send what is left, within the flush budget. Where all arrived, the spools go."""
        self._thread.start()
        if death_fd is not None:
            os.read(death_fd, 1)
        self._ending.set()
        self._thread.join(self._settings.flush_s)
        arrived = self._all_read and not self._unsent and not self._follower.failures
        if arrived and not self._keep:
            for path in itertools.chain(*spool.segments(self._run_dir).values()):
                path.unlink(missing_ok=True)
            remove_if_empty(self._run_dir)
        self._report(arrived)

    def _run(self) -> None:
        try:
            while not self._ending.wait(0.0 if self._follower.behind else self._settings.delay_s):
                self._look()
            quiet_by = time.monotonic() + min(LAST_WORDS_S, self._settings.flush_s / 2)
            self._look()
            while self._follower.behind or (self._follower.reader.look_alive() and time.monotonic() < quiet_by):
                time.sleep(0.0 if self._follower.behind else LAST_LOOKS_S)
                self._look()
            self._look(final=True)
            self._all_read = True
        except Exception as error:  # its fault must not look like a collector that is slow
            print(f"vllm-lite exporter: cannot go on: {error!r}", file=sys.stderr)

    def _look(self, final: bool = False) -> None:
        """One poll. Traces are made as they are sent, so that hardly more than a batch is held."""
        batch, size = list[Span](), self._settings.batch_spans
        for spans in self._follower.poll(time.monotonic(), final):
            batch += spans
            while len(batch) >= size:
                self._send(batch[:size])
                batch = batch[size:]
        self._send(batch)
        if not self._keep and not self._unsent and not self._follower.failures:
            self._follower.tidy()

    def _send(self, spans: list[Span]) -> None:
        if not spans or not self._settings.enabled:
            return
        self._unsent += len(spans)
        if self._collector is None:
            from vllm_lite.tracing.exporter.official import Collector  # slow, and grpc's

            self._collector = Collector(self._settings, os.environ)
        if self._collector.deliver([self._limits.apply(span) for span in spans] if self._limits.any else spans):
            self._unsent -= len(spans)
            self._sent += len(spans)

    def _report(self, arrived: bool) -> None:
        assembler, failures = self._follower.assembler, self._follower.failures
        dropped = sum(record.count for _, record in assembler.dropped)
        if not arrived:
            errors = self._collector.errors if self._collector is not None else []
            left = f"{self._unsent} spans did not arrive at {self._settings.endpoint}, {self._sent} did"
            unread = "" if self._all_read else "; what was not read yet is not counted"
            again = f"vllm-lite trace export {self._run_dir} --otlp-traces-endpoint {self._settings.endpoint}"
            rest = f"the spools are kept, and this finishes the job: {again}"
            print(f"vllm-lite exporter: {left} ({(errors or ['no answer'])[-1]}){unread}; {rest}", file=sys.stderr)
        if failures:
            print(f"vllm-lite exporter: {len(failures)} traces could not be made, the first for {failures[0]}", file=sys.stderr)
        if dropped or assembler.unclaimed:
            print(f"vllm-lite exporter: {dropped} records dropped, {assembler.unclaimed} unclaimed", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """The process. Returns 0 where it ended in order, whatever the collector did; 2 for settings that are refused."""
    parser = argparse.ArgumentParser(prog="python -m vllm_lite.tracing.exporter", description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--death-fd", type=int, help="read end of a pipe; its end of file means that the engine is gone")
    parser.add_argument("--endpoint", help="before the OTEL_EXPORTER_OTLP_* variables")
    parser.add_argument("--keep", action="store_true", help="keep the spools after they were exported")
    args = parser.parse_args(argv)
    try:
        settings, limits = check_environment(args.endpoint, os.environ), Limits.read(os.environ)
    except VLLMValidationError as error:
        print(f"vllm-lite exporter: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(GC_OBJECTS, 20, 20)
    Exporter(args.run_dir, settings, limits, args.keep).export(args.death_fd)
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # a sender that hangs on a dead collector must not delay the end
