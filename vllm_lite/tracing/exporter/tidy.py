"""Removes spool segments whose spans have all arrived.

Process: exporter. Knows: which segments are finished, how far following and sending have come. Does not know: what is in them.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from pathlib import Path

from vllm_lite.tracing import spool
from vllm_lite.tracing.run_dir import remove_if_empty


class Tidy:
    """A segment may go once a later one exists (so nobody writes to it), it was read to its end, every request and step that
    began in it is over, and all their spans have arrived."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._read: dict[Path, int] = {}  # finished segment -> poll that had read it to its end

    def finished(self) -> list[Path]:
        """Segments that nobody writes to any more; asked before a poll, so that the poll reads them to their end."""
        return [path for paths in spool.segments(self._run_dir).values() for path in paths[:-1]]

    def after_poll(self, finished: list[Path], poll: int, oldest: int, done_until: float) -> None:
        """Remove what may go. `oldest` is the poll that found the oldest thing still open."""
        for path in finished:
            self._read.setdefault(path, poll)
        for path, read in list(self._read.items()):
            if read < oldest and read < done_until:
                path.unlink(missing_ok=True)
                del self._read[path]

    def remove_all(self) -> None:
        """The run is over and everything arrived."""
        for paths in spool.segments(self._run_dir).values():
            for path in paths:
                path.unlink(missing_ok=True)
        remove_if_empty(self._run_dir)
