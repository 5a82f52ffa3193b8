"""The repository speaks of itself alone."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest

from tests.architecture.source import ROOT

MACHINES = ["work", "root", "opt/pypi", "opt/wheels", "tmp/vl", "home/[a-z]+"]
HOSTS = [r"pypi\.org", r"pythonhosted\.org", r"npmjs\.org", r"debian\.org", r"pytorch\.org", r"huggingface\.co"]
FORBIDDEN = re.compile("|".join([*(f"(?<![\\w.])/{folder}/" for folder in MACHINES), *HOSTS]))


def tracked_files() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", [name for name in tracked_files() if name != "tests/architecture/test_repository.py"])
def test_no_file_names_a_machine_or_a_registry(name: str) -> None:
    path = ROOT / name
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    assert FORBIDDEN.search(text) is None


def requirements() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {
        re.match(r"[\w.-]+", line).group()  # type: ignore[union-attr]
        for line in [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    }


def test_every_dependency_is_justified() -> None:
    rows = re.findall(r"^\| `([\w.-]+)` \| (\S.*) \|$", (ROOT / "docs" / "dependencies.md").read_text(), re.MULTILINE)
    assert {name for name, _ in rows} == requirements()
    assert len(rows) == len(requirements())
