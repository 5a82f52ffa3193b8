"""Appends records and writes them as one frame: the only tracing code on the hot path.

Process: all, one recorder for each writing thread (no locks). Knows: the control page, its own spool. Does not know: spans,
exporters, engine classes. Callers guard with `if recorder is not None and recorder.level:`; a frame goes out with one
unbuffered write for each step, bag or event of a request's life, so a killed process loses at most its last one.
Mirrors: nothing in vLLM.
"""

from collections.abc import Callable
from pathlib import Path

from vllm_lite.tracing.clock import now_ns
from vllm_lite.tracing.control_page import ControlPage
from vllm_lite.tracing.records import Bye, Error, Phase, Record, Takes
from vllm_lite.tracing.spool import SpoolWriter

__all__ = ["Recorder", "described", "now_ns", "writable"]


class Recorder:
    """Buffers one frame's records for one thread of one process.

    `role` is "frontend", "engine-core" or "worker"; `thread` tells this process's spools apart. `spool` replaces the one that
    these would make.
    """

    def __init__(self, run_dir: str | Path, role: str, thread: str, spool: SpoolWriter | None = None) -> None:
        self._control = ControlPage.open(Path(run_dir))
        self._spool = spool or SpoolWriter(Path(run_dir), role, thread)
        self._records: list[Record] = []
        self.level = self._control.level
        self._takes: list[int] = []
        # A caller took a letter (level 2 and up): its request and the time, in one call, so that Ctrl-C leaves no half. No
        # method, for there is one per token; and one flat list, because a kept tuple for each would wake the garbage collector.
        self.take: Callable[[tuple[int, int]], None] = self._takes.extend

    def refresh(self) -> int:
        """Read the level from the control page; called once per step, bag or new request."""
        self.level = 0 if self._spool.failed else self._control.level
        return self.level

    def sample_life(self, sampled: bool) -> None:
        """Decide, for all processes of the run, whether phases are recorded."""
        self._control.life = sampled

    def phase(self, name: str, t0: int, t1: int | None = None, error: BaseException | None = None) -> None:
        """A stretch of this process's life is over: from `t0` to `t1`, else now, ended by `error` perhaps."""
        if self.refresh() and self._control.life:
            self.append(Phase(name, t0, now_ns() if t1 is None else t1, described(error)))
            self.flush()

    def admit(self) -> bool:
        """Count one more traced request against `--trace-count`; False once it is used up."""
        return self._control.admit()

    def append(self, record: Record) -> None:
        """Keep `record` for the next frame."""
        self._records.append(record)

    def note_takes(self, reqs: list[int], ts: list[int], tokens: list[int]) -> None:
        """Keep these takes for the next frame, with what they brought where nothing else says it."""
        self._records.append(Takes(reqs, ts, tokens))

    def flush(self) -> None:
        """Write what was kept as one frame. Never raises: a failing disk switches this recorder off with one warning."""
        if self._takes:
            takes = self._takes
            self.note_takes(takes[0::2], takes[1::2], [])
            self._takes.clear()
        if self._records:
            try:
                self._spool.write(self._records)
            finally:
                self._records.clear()

    def close(self, t: int | None = None) -> None:
        """Write the last frame and the farewell (at `t`, else now) that tells readers nothing is missing."""
        self.flush()
        self._spool.close(Bye(now_ns() if t is None else t))
        self._control.close()


def described(error: BaseException | None) -> Error | None:
    """An error as records hold it: type and message."""
    return None if error is None else (type(error).__name__, writable(str(error)))


def writable(text: str) -> str:
    """`text` with lone surrogates, which UTF-8 cannot hold, written out."""
    return text.encode(errors="backslashreplace").decode()
