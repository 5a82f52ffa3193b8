from __future__ import annotations

import subprocess
import sys

import pytest

import vllm_lite


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'vllm_lite' has no attribute 'Nothing'"):
        vllm_lite.Nothing  # noqa: B018


@pytest.mark.parametrize("name", vllm_lite.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(vllm_lite, name) is not None


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, vllm_lite; print(sorted(m for m in sys.modules if m.startswith(('vllm_lite', 'torch', 'zmq', 'numpy'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['vllm_lite']\n"
