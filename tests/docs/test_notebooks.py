"""The notebooks run, every cell of them, and what is stored is what they say.

`VLLM_LITE_UPDATE_NOTEBOOKS=1 pytest tests/docs/test_notebooks.py` stores what the cells show; look at it before you commit it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import pytest

from tests.architecture.source import ROOT

UPDATE = bool(os.environ.get("VLLM_LITE_UPDATE_NOTEBOOKS"))  # read before the tests' environment is cleaned
SOURCES = sorted((ROOT / "notebooks").glob("*.py"))
STRICT = "import warnings\nwarnings.simplefilter('error')"


def sources(notebook: Any) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def executed(source: Path, folder: Path) -> Any:
    """The notebook with what its cells show, run in `folder`; a cell that fails is an error here. In it warnings are errors."""
    notebook = jupytext.read(source)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(STRICT))
    nbformat.write(notebook, folder / "n.ipynb")
    own = dict.fromkeys(("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"), str(folder))
    command = [Path(sys.executable).parent / "jupyter-execute", "--timeout=60", "--inplace", folder / "n.ipynb"]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    notebook = nbformat.read(folder / "n.ipynb", as_version=4)
    del notebook.cells[0]
    return notebook


def tidied(notebook: Any) -> Any:
    """Without what is another one in each run and on each machine."""
    notebook.metadata = {"kernelspec": notebook.metadata.kernelspec, "language_info": {"name": "python"}}
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        for counted in (cell, *cell.get("outputs", ())):
            if counted.get("execution_count"):
                counted.execution_count -= 1  # the cell before the first is gone
        for output in cell.get("outputs", ()):
            if "text/html" in output.get("data", {}):
                del output.data["text/plain"]
    return notebook


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_cell_runs(source: Path, tmp_path: Path) -> None:
    notebook = executed(source, tmp_path)
    streams = [output for cell in notebook.cells for output in cell.get("outputs", ()) if output.output_type == "stream"]
    assert {stream.name for stream in streams} == {"stdout"}
    assert all(sum("data" in output for output in cell.get("outputs", ())) <= 1 for cell in notebook.cells)
    if UPDATE:
        nbformat.write(tidied(notebook), source.with_suffix(".ipynb"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_what_is_stored_is_what_the_source_says(source: Path) -> None:
    stored = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(stored)
    assert sources(stored) == sources(jupytext.read(source))
    shown = [output for cell in stored.cells for output in cell.get("outputs", ())]
    assert [output for output in shown if output.output_type == "error"] == []
    assert any("MAILROOM" in output.get("data", {}).get("text/html", "") for output in shown)
