"""The reference pages name everything that exists, and nothing else."""

from __future__ import annotations

import re
from typing import get_args

from tests.architecture.source import PACKAGE, ROOT, modules
from vllm_lite.tracing import records


def test_every_record_kind_is_described_with_its_station() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (S\d)? ?\| \S", (ROOT / "docs" / "tracing.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted((kind.__name__, kind.STATION) for kind in get_args(records.AnyRecord))


def test_every_variable_is_described() -> None:
    used = {name for path in modules() for name in re.findall(r"VLLM_LITE_[A-Z0-9_]+", (PACKAGE / path).read_text())}
    described = set(re.findall(r"^\| `(VLLM_LITE_\w+)` ", (ROOT / "docs" / "environment.md").read_text(), re.MULTILINE))
    assert described == used


def test_every_span_name_is_described() -> None:
    page = (ROOT / "docs" / "tracing.md").read_text()
    source = "\n".join((PACKAGE / path).read_text() for path in modules() if path.startswith("tracing/spans/"))
    named = set(
        re.findall(r'"((?:request|scheduler|executor|worker|output_processor|input_processor|engine_core)\.\w+)"', source)
    )
    assert {name for name in named if name not in page} == set()
