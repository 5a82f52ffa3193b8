"""A profile of what this worker computes, by torch's own profiler, as a file that Perfetto and chrome://tracing show.

Process: worker. Knows: torch's profiler, the run directory. Does not know: steps or requests.
Mirrors: vllm/profiler/wrapper.py (TorchProfilerWrapper)
"""

from __future__ import annotations

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
        self._prefix = ""
        self._count = 0

    def start(self, prefix: str | None) -> None:
        """Begin. Raises VLLMValidationError for a prefix that is no file name, RuntimeError where one runs already."""
        if self._folder is None:
            raise RuntimeError("a profile is written to the run directory (observability_config.trace_dir), and there is none")
        if prefix is not None and not re.fullmatch(r"[\w.-]+", prefix):
            raise refuse("profile_prefix", prefix, "a part of a file name: letters, digits, '.', '_', '-'")
        if self._running is not None:
            raise RuntimeError("a profile is being taken already")
        cuda = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        self._prefix = prefix or "profile"
        self._running = profile(activities=[ProfilerActivity.CPU, *cuda])
        self._running.start()

    def stop(self) -> str:
        """End and write; returns the file's path. RuntimeError where none runs."""
        if self._running is None:
            raise RuntimeError("no profile is being taken")
        running, self._running = self._running, None
        running.stop()
        self._count += 1
        path = Path(str(self._folder)) / f"{self._prefix}-rank{self._rank}-{self._count}.pt.trace.json"
        running.export_chrome_trace(str(path))
        return str(path)
