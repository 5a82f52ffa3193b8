from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vllm_lite.tracing.journey.ends import Ends


@given(st.lists(st.integers()), st.none() | st.integers(0, 4))
def test_first_and_last_stay(items: list[int], keep: int | None) -> None:
    ends: Ends[int] = Ends(keep)
    for item in items:
        ends.append(item)
    whole = keep is None or len(items) <= 2 * keep
    expected = items if whole else items[:keep] + items[len(items) - (keep or 0) :]
    assert list(ends) == expected
    assert len(ends) == len(expected)
    assert ends.count == len(items)
    assert ends.skipped == len(items) - len(expected)
    assert ends.first == (expected[0] if expected else None)
    assert ends.last == (expected[-1] if expected else None)
