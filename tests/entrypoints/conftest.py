from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def garbage_is_collected_again() -> Iterator[None]:
    """Commands that read a run expect their process to end."""
    yield
    gc.unfreeze()
    gc.enable()
