from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def what_a_command_froze_may_go() -> Iterator[None]:
    """Commands that show a run expect their process to end."""
    yield
    gc.unfreeze()
