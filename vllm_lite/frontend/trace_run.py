"""One engine's run directory and the exporter process that empties it.

Process: front end, when an engine is built and when it goes. Knows: folders, the exporter's command. Does not know: records.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from vllm_lite.config import ObservabilityConfig
from vllm_lite.tracing.control_page import CONTROL_FILE
from vllm_lite.tracing.run_dir import create_run_dir

EXPORTER_MODULE = "vllm_lite.tracing.exporter"


class TraceRun:
    """Makes the run directory, or joins the run that `trace_dir` holds already, and starts the exporter of a new one.

    The exporter has a session of its own and outlives us by its flush budget; it learns of our end by the death pipe.
    """

    def __init__(self, config: ObservabilityConfig) -> None:
        explicit = config.trace_dir
        self._joined = explicit is not None and (Path(explicit) / CONTROL_FILE).exists()
        self._explicit = explicit is not None
        self.path = Path(explicit) if explicit is not None and self._joined else _new_run_dir(config.level, explicit)
        self._exporter: subprocess.Popen[bytes] | None = None
        self._death_fd: int | None = None
        if config.otlp_traces_endpoint is not None and not self._joined:
            self._start_exporter(config, config.otlp_traces_endpoint)

    def close(self) -> None:
        """Let the exporter finish by itself; take away a directory of our own choosing in which nothing was recorded."""
        if self._death_fd is not None:
            os.close(self._death_fd)
            self._death_fd = None
        if self._exporter is not None:
            threading.Thread(target=self._exporter.wait, name="exporter-reaper", daemon=True).start()
            self._exporter = None
        elif not self._joined and not self._explicit and [p.name for p in self.path.glob("*")] == [CONTROL_FILE]:
            shutil.rmtree(self.path, ignore_errors=True)

    def _start_exporter(self, config: ObservabilityConfig, endpoint: str) -> None:
        read_end, self._death_fd = os.pipe()
        command = [sys.executable, "-m", EXPORTER_MODULE, str(self.path), "--death-fd", str(read_end), "--endpoint", endpoint]
        command += ["--keep"] if config.trace_keep else []
        try:
            self._exporter = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(read_end,), start_new_session=True)
        finally:
            os.close(read_end)


def _new_run_dir(level: int, explicit: str | None) -> Path:
    """A run that nobody asked for stands in no engine's way: where its usual place cannot be written, it is temporary."""
    try:
        return create_run_dir(level, explicit)
    except OSError:
        if level > 0 or explicit is not None:
            raise
        return create_run_dir(level, tempfile.mkdtemp(prefix="vllm-lite-run-"))
