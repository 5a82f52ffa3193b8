"""The run directory: where one engine's spools and control page live.

Process: made by whoever builds AsyncLLM, LLM or the launcher; every child is told its path. Knows: folders. Does not know:
what is written in them.
Mirrors: nothing in vLLM.
"""

import os
import time
from contextlib import closing
from pathlib import Path

from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.control_page import CONTROL_FILE, ControlPage
from vllm_lite.tracing.process import is_alive


def create_run_dir(level: int, explicit: str | None = None) -> Path:
    """Make the run's directory (mode 0700) with its control page at `level`, and return it.

    `explicit`, else `$VLLM_LITE_TRACE_DIR`, else `$XDG_STATE_HOME/vllm-lite/runs/<time>-<pid>`. A second engine under the same
    explicit folder gets a numbered one beside it, so that two runs never mix. A `level` of 0 is `$VLLM_LITE_TRACE_LEVEL`.
    """
    level = level or _level(os.environ.get("VLLM_LITE_TRACE_LEVEL", "0"))
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


def close_run_dir(run_dir: Path) -> None:
    """Called by the owner when the run is over: a directory in which nothing was recorded goes, and so do empty ones beside it
    whose owners died before they could do the same."""
    remove_if_empty(run_dir)
    runs = _state_home() / "runs"
    if run_dir.parent != runs:
        return
    for other in runs.iterdir():
        if other.is_dir() and not _owned(other):
            remove_if_empty(other)


def remove_if_empty(run_dir: Path) -> bool:
    """Remove a directory that holds nothing but its control page; True where it is gone."""
    if any(path.name != CONTROL_FILE for path in run_dir.iterdir()):
        return False
    (run_dir / CONTROL_FILE).unlink(missing_ok=True)
    run_dir.rmdir()
    return True


def _owned(run_dir: Path) -> bool:
    """Whether the process that made the directory still runs."""
    try:
        with closing(ControlPage.open(run_dir)) as page:
            return is_alive(page.pid)
    except (FileNotFoundError, ValueError):
        return True  # not ours to judge


def _level(value: str) -> int:
    if value not in ("0", "1", "2", "3"):
        told = f"VLLM_LITE_TRACE_LEVEL is {value!r}; use a level from 0 to 3"
        raise VLLMValidationError(told, parameter="VLLM_LITE_TRACE_LEVEL", value=value)
    return int(value)


def _state_home() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "vllm-lite"
