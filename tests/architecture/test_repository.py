"""The repository speaks of itself alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib

import pytest

from tests.architecture.source import ROOT, modules

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


# What brings an imported package, where that has another name; triton comes with the CUDA build of torch.
IMPORTED_AS = {
    "opentelemetry": "opentelemetry-sdk",
    "zmq": "pyzmq",
    "huggingface_hub": "huggingface-hub",
    "prometheus_client": "prometheus-client",
    "triton": "torch",
}


def test_every_import_is_a_declared_dependency() -> None:
    names = {name for module in modules().values() for name in imported_packages(module)}
    foreign = {IMPORTED_AS.get(name, name) for name in names - set(sys.stdlib_module_names) - {"vllm_lite"}}
    assert foreign <= requirements()


def imported_packages(module: ast.Module) -> set[str]:
    imports = [node for node in ast.walk(module) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    return {name.split(".")[0] for name in names}
