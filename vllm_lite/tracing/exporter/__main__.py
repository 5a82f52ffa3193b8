"""`python -m vllm_lite.tracing.exporter RUN_DIR`: follow a run until its engine is gone, send its spans, then tidy up.

Process: exporter, in a session of its own so that Ctrl-C spares it. Knows: when to look, when to stop. Does not know: spans.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import argparse
import gc
import os
import select
import signal
import sys
import time
from pathlib import Path

from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.exporter.follow import Follower, Tidy
from vllm_lite.tracing.exporter.sender import Export, LastError, Sender
from vllm_lite.tracing.exporter.settings import Settings, read_settings
from vllm_lite.tracing.spans import Span
from vllm_lite.tracing.spans.environment import Limits

GC_OBJECTS = 200_000  # between two collections: what is forgotten leaves no cycles, and looking for some took half the time
LAST_LOOKS_S = 0.02
LAST_WORDS_S = 0.3  # of the budget: how long the engine's processes may take to write their last records


class Exporter:
    """One run from its first record to the flush at its end."""

    def __init__(self, run_dir: Path, settings: Settings, limits: Limits, keep: bool) -> None:
        self._run_dir, self._settings, self._limits = run_dir, settings, limits
        self._keep = keep or not settings.enabled  # what was not sent is not thrown away either
        self._follower = Follower(run_dir)
        self._sender = Sender(self._connect, settings.batch_spans, settings.queue_spans)
        self._tidy = Tidy(run_dir)
        self._errors = LastError()

    def follow(self, death_fd: int | None) -> None:
        """Until the process that holds the other end of `death_fd` is gone; without one, the run is already over."""
        self._sender.start()
        while death_fd is not None and not select.select([death_fd], [], [], self._pause())[0]:
            if not self._sender.full:
                self._look()

    def finish(self) -> bool:
        """Read the last words, send what is left, both within the flush budget. True where everything arrived."""
        deadline = time.monotonic() + self._settings.flush_s
        quiet_by = time.monotonic() + min(LAST_WORDS_S, self._settings.flush_s / 2)
        while time.monotonic() < deadline:
            found = not self._sender.full and self._look()
            if not self._follower.behind and (not self._follower.reader.look_alive() or time.monotonic() > quiet_by):
                break
            time.sleep(0.0 if found else LAST_LOOKS_S)
        read_all = not self._follower.behind
        if read_all:
            self._look(final=True)
        sent = self._sender.close(deadline - time.monotonic())
        arrived = sent and read_all and not self._sender.lost and not self._follower.failures
        if arrived and not self._keep:
            self._tidy.remove_all()
        self._report(arrived)
        return arrived

    def _pause(self) -> float:
        return 0.0 if self._follower.behind and not self._sender.full else self._settings.delay_s

    def _look(self, final: bool = False) -> bool:
        """One poll; True where it found new records."""
        before, finished = self._follower.num_records, self._tidy.finished()
        batch, size = list[Span](), self._settings.batch_spans
        for spans in self._follower.poll(time.monotonic(), final):
            batch += spans
            while len(batch) >= size:
                self._put(batch[:size])
                batch = batch[size:]
        self._put(batch)
        if not self._keep and not self._follower.failures:
            self._tidy.after_poll(finished, self._follower.polls, self._follower.oldest, self._sender.done_until)
        return self._follower.num_records > before

    def _put(self, spans: list[Span]) -> None:
        if spans and self._settings.enabled:
            limited = [self._limits.apply(span) for span in spans] if self._limits.any else spans
            self._sender.put(limited, self._follower.polls)

    def _connect(self) -> Export:
        from vllm_lite.tracing.exporter.official import connect

        return connect(self._settings, os.environ)

    def _report(self, arrived: bool) -> None:
        sender, assembler, failures = self._sender, self._follower.assembler, self._follower.failures
        dropped = sum(record.count for _, record in assembler.dropped)
        if not arrived:
            left = f"{sender.waiting + sender.lost} spans did not arrive at {self._settings.endpoint}, {sender.sent} did"
            again = f"python -m vllm_lite.tracing.exporter {self._run_dir} --endpoint {self._settings.endpoint}"
            rest = f"the spools are kept, and this finishes the job: {again}"
            print(f"vllm-lite exporter: {left} ({self._errors.text or 'no answer'}); {rest}", file=sys.stderr)
        if failures:
            print(f"vllm-lite exporter: {len(failures)} traces could not be made, the first for {failures[0]}", file=sys.stderr)
        if dropped or assembler.unclaimed:
            print(f"vllm-lite exporter: {dropped} records dropped, {assembler.unclaimed} unclaimed", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """The process. Returns 0 where it ended in order, whatever the collector did; 2 for settings that are refused."""
    parser = argparse.ArgumentParser(prog="python -m vllm_lite.tracing.exporter", description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=Path)
    parser.add_argument(
        "--death-fd", type=int, help="read end of a pipe; its end of file means that the engine's owner is gone"
    )
    parser.add_argument("--endpoint", help="before the OTEL_EXPORTER_OTLP_* variables")
    parser.add_argument("--keep", action="store_true", help="keep the spools after they were exported")
    args = parser.parse_args(argv)
    try:
        settings, limits = read_settings(os.environ, args.endpoint), Limits.read(os.environ)
    except VLLMValidationError as error:
        print(f"vllm-lite exporter: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(GC_OBJECTS, 20, 20)
    exporter = Exporter(args.run_dir, settings, limits, args.keep)
    exporter.follow(args.death_fd)
    exporter.finish()
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # a sender that hangs on a dead collector must not delay the end
