"""The command as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def vllm_lite(*arguments: str | Path, columns: int = 80) -> subprocess.CompletedProcess[str]:
    """Run `vllm-lite` with these arguments in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "vllm_lite.entrypoints.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": str(columns)},
    )
