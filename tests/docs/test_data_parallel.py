"""The page's example runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.architecture.source import ROOT


def test_two_front_ends_answer(tiny_model_path: Path, tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/data_parallel.md").read_text(), re.MULTILINE | re.DOTALL)
    torch_free = example.replace('model="tiny"', f'model={str(tiny_model_path)!r}, distributed_executor_backend="toy"')
    assert torch_free != example
    (tmp_path / "example.py").write_text(torch_free)
    # Unbuffered, each of the two would write its line in pieces, between which the other's may come.
    command, env = [sys.executable, tmp_path / "example.py"], {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(line.split(" says ")[0] for line in done.stdout.splitlines() if " says " in line) == [
        "front end 0",
        "front end 1",
    ]
