"""Triton's kernels run in its interpreter here; it asks once, when they are first imported."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
