"""What the views' `python -m` demos draw: the canned run, written and read again as any other.

Process: demos and tests. Knows: the canned run. Does not know: views.
Mirrors: nothing in vLLM.
"""

import tempfile
from pathlib import Path

from rich.console import RenderableType

from vllm_lite.console.theme import new_console
from vllm_lite.tracing.canned import write_canned_run
from vllm_lite.tracing.journey import Run, load_run


def canned_run(level: int = 3, engine_dies: bool = False) -> Run:
    """The canned run at `level`; nothing of it stays on the disk."""
    with tempfile.TemporaryDirectory(prefix="vllm-lite-demo-") as folder:
        return load_run(write_canned_run(Path(folder) / "run", level, engine_dies))


def show(view: RenderableType) -> None:
    """Print a view as a command would."""
    new_console().print(view)
