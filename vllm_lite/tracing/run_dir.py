"""The run directory: where one engine's spools and control page live.

Process: made by whoever builds AsyncLLM, LLM or the launcher; every child is told its path. Knows: folders. Does not know:
what is written in them.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from vllm_lite.tracing.control_page import ControlPage


def create_run_dir(level: int, explicit: str | None = None) -> Path:
    """Make the run's directory (mode 0700) with its control page at `level`, and return it.

    `explicit`, else `$VLLM_LITE_TRACE_DIR`, else `$XDG_STATE_HOME/vllm-lite/runs/<time>-<pid>`. A second engine under the same
    explicit folder gets a numbered sub-folder, so that two runs never mix.
    """
    chosen = explicit or os.environ.get("VLLM_LITE_TRACE_DIR")
    base = Path(chosen) if chosen else _state_home() / "runs" / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
    for attempt in range(1000):
        run_dir = base if attempt == 0 else base.with_name(f"{base.name}.{attempt}")
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            ControlPage.create(run_dir, level, pid=os.getpid()).close()
        except FileExistsError:
            continue
        return run_dir
    raise FileExistsError(f"{base} already holds 1000 runs; remove some or choose another folder")


def _state_home() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "vllm-lite"
