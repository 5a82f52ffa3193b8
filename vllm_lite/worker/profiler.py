"""A profile of what this worker computes, by torch's own profiler, as a file that Perfetto and chrome://tracing show.

Process: worker. Knows: torch's profiler, the run directory. Does not know: steps or requests.
Mirrors: vllm/profiler/wrapper.py (TorchProfilerWrapper)
"""

import re
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from vllm_lite.config.checks import refuse


class WorkerProfiler:
    """At most one profile at a time; files go to `folder`, the run directory (None: there is none, and no profile)."""

    def __init__(self, folder: str | None, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._running: profile | None = None
        self._prefix: str | None = None  # None: no profile is wanted
        self._delay = self._left = 0  # steps before it begins, and those that it still takes (below 0: all)
        self._path = ""  # of the last one
        self._count = 0

    def start(self, prefix: str | None, delay: int = 0, most: int = 0) -> None:
        """Begin after `delay` steps, and end by itself after `most` more (0: `stop` ends it).

        Raises VLLMValidationError for a prefix that is no file name, RuntimeError where one is taken already.
        """
        if self._folder is None:
            raise RuntimeError("a profile is written to the run directory (observability_config.trace_dir), and there is none")
        if prefix is not None and not re.fullmatch(r"[\w.-]+", prefix):
            raise refuse("profile_prefix", prefix, "a part of a file name: letters, digits, '.', '_', '-'")
        if self._prefix is not None:
            raise RuntimeError("a profile is being taken already")
        self._prefix, self._delay, self._left, self._path = prefix or "profile", delay, most or -1, ""
        if not delay:
            self._begin()

    def step(self) -> None:
        """A step is about to run."""
        if self._prefix is None:
            return
        if self._running is None and self._delay == 0:
            self._begin()
        if self._running is None:
            self._delay -= 1
        elif self._left == 0:
            self._path = self._end(self._running)
        else:
            self._left -= 1

    def stop(self) -> str:
        """End and write; returns the file's path, also of one that has ended by itself. RuntimeError where there is none."""
        path, self._path = self._path, ""
        if self._running is not None:
            return self._end(self._running)
        if not path:
            delayed, self._prefix = self._prefix is not None, None
            raise RuntimeError("the profile was ended before its delay was over" if delayed else "no profile is being taken")
        return path

    def _begin(self) -> None:
        cuda = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        self._running = profile(activities=[ProfilerActivity.CPU, *cuda])
        self._running.start()

    def _end(self, running: profile) -> str:
        running.stop()
        self._count += 1
        path = Path(str(self._folder)) / f"{self._prefix}-rank{self._rank}-{self._count}.pt.trace.json"
        running.export_chrome_trace(str(path))
        self._running = self._prefix = None
        return str(path)
