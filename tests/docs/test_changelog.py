from __future__ import annotations

import re
import tomllib

import vllm_lite
from tests.architecture.source import ROOT


def test_the_newest_entry_is_this_version() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == vllm_lite.__version__


def test_the_package_and_its_metadata_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == vllm_lite.__version__
