"""One engine's run directory and the exporter process that empties it.

Process: front end, when an engine is built and when it goes. Knows: who made the directory. Does not know: records.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_lite.config import ObservabilityConfig
from vllm_lite.config.checks import refuse
from vllm_lite.tracing.run_dir import close_run_dir, create_run_dir

if TYPE_CHECKING:
    from vllm_lite.tracing.exporter.launch import ExporterProcess


class TraceRun:
    """Makes the run directory and, where there is an endpoint, starts its exporter.

    Each engine has a run of its own: numbers of requests and bags are told apart by spool, and spools by process.
    """

    def __init__(self, config: ObservabilityConfig) -> None:
        self._exporter: ExporterProcess | None = None
        self.path = _new_run_dir(config.level, config.trace_dir)
        try:
            if config.otlp_traces_endpoint is not None:
                from vllm_lite.tracing.exporter.launch import ExporterProcess

                self._exporter = ExporterProcess(self.path, config.otlp_traces_endpoint, config.trace_keep)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Wait until the exporter has sent what there is, for its flush budget at most; then tidy up. Once is enough."""
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            exporter.close()
        with contextlib.suppress(OSError):  # the exporter may have tidied up before
            close_run_dir(self.path)


def _new_run_dir(level: int, explicit: str | None) -> Path:
    """A run that nobody asked for stands in no engine's way: where its usual place cannot be written, it is temporary."""
    try:
        return create_run_dir(level, explicit)
    except OSError as error:
        variable = None if explicit else os.environ.get("VLLM_LITE_TRACE_DIR")
        if level > 0 or explicit or variable or os.environ.get("VLLM_LITE_TRACE_LEVEL", "0") != "0":
            field, value = ("VLLM_LITE_TRACE_DIR", variable) if variable else ("trace_dir", explicit)
            raise refuse(field, value, f"a folder that can be made and written here ({error})") from error
        return create_run_dir(level, tempfile.mkdtemp(prefix="vllm-lite-run-"))
