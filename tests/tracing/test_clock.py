from __future__ import annotations

import time

from vllm_lite.tracing.clock import Anchor, boot_id, clock_anchor


def test_an_anchor_ties_the_clocks_together() -> None:
    before, anchor, after = time.time_ns(), clock_anchor(), time.time_ns()
    assert before <= anchor.wall_ns <= after
    # Converting now's monotonic time gives now's wall time; only a clock set meanwhile could part them.
    assert abs(time.monotonic_ns() + anchor.offset - time.time_ns()) < 1_000_000_000


def test_offset_is_wall_minus_monotonic() -> None:
    assert Anchor(1_000, 400, "").offset == 600


def test_the_boot_is_always_the_same() -> None:
    assert boot_id() == boot_id() == clock_anchor().boot_id
