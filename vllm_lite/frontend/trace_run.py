"""One engine's run directory and the exporter process that empties it.

Process: front end, when an engine is built and when it goes. Knows: who made the directory. Does not know: records.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_lite.config import ObservabilityConfig
from vllm_lite.tracing.control_page import ControlPage
from vllm_lite.tracing.process import is_alive
from vllm_lite.tracing.run_dir import close_run_dir, create_run_dir

if TYPE_CHECKING:
    from vllm_lite.tracing.exporter.launch import ExporterProcess


class TraceRun:
    """Makes the run directory and, where there is an endpoint, starts its exporter; or joins the running one in `trace_dir`.

    A run that is joined belongs to whoever made it, exporter included.
    """

    def __init__(self, config: ObservabilityConfig) -> None:
        self._joined = config.trace_dir is not None and _is_running(Path(config.trace_dir))
        self._exporter: ExporterProcess | None = None
        if config.trace_dir is not None and self._joined:
            self.path = Path(config.trace_dir)
            return
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
        if self._joined:
            return
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            exporter.close()
        with contextlib.suppress(OSError):  # the exporter may have tidied up before
            close_run_dir(self.path)


def _is_running(run_dir: Path) -> bool:
    """Whether this is the directory of a run whose owner lives."""
    try:
        page = ControlPage.open(run_dir)
    except (OSError, ValueError):
        return False
    owner = page.pid
    page.close()
    return is_alive(owner)


def _new_run_dir(level: int, explicit: str | None) -> Path:
    """A run that nobody asked for stands in no engine's way: where its usual place cannot be written, it is temporary."""
    try:
        return create_run_dir(level, explicit)
    except OSError:
        if level > 0 or explicit is not None:
            raise
        return create_run_dir(level, tempfile.mkdtemp(prefix="vllm-lite-run-"))
