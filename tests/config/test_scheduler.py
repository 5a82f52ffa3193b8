from __future__ import annotations

from typing import Any

import pytest

from vllm_lite.config import SchedulerConfig
from vllm_lite.exceptions import VLLMValidationError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_num_batched_tokens", 0),
        ("max_num_seqs", 0),
        ("max_num_seqs", True),
        ("long_prefill_token_threshold", -1),
        ("stream_interval", 0),
        ("enable_chunked_prefill", "yes"),
        ("scheduler_reserve_full_isl", None),
        ("async_scheduling", 1),
        ("policy", "lifo"),
        ("max_num_queued_reqs", 0),
        ("max_num_queued_tokens", 0.5),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(VLLMValidationError, match=rf"^{field} must be ") as caught:
        SchedulerConfig(**{field: value})
    assert caught.value.parameter == field


def test_a_step_must_have_room_for_one_token_of_each_request() -> None:
    SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=8)
    with pytest.raises(VLLMValidationError, match=r"^max_num_batched_tokens must be >= max_num_seqs, which is 9; got 8$"):
        SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=9)
