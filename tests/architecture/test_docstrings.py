"""Each module says which process runs it, what it knows, what it does not know, and what it mirrors."""

from __future__ import annotations

import ast
import re

import pytest

from tests.architecture.source import holds_code, modules


@pytest.mark.parametrize("name", [name for name, module in modules().items() if holds_code(module)])
def test_a_module_introduces_itself(name: str) -> None:
    docstring = ast.get_docstring(modules()[name]) or ""
    assert re.search(r"^Mirrors: ", docstring, re.MULTILINE), "no line 'Mirrors: ...'"
    if not name.endswith("__init__.py"):
        words = " ".join(docstring.split())
        assert [label for label in ("Process: ", "Knows: ", "Does not know: ") if label not in words] == []


@pytest.mark.parametrize("name", [name for name, module in modules().items() if not holds_code(module)])
def test_an_empty_package_says_what_it_holds(name: str) -> None:
    assert ast.get_docstring(modules()[name])
