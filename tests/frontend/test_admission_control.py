"""All of n are admitted, or none; requests are looked at before tokens."""

from __future__ import annotations

import pytest

from vllm_lite.config import SchedulerConfig
from vllm_lite.exceptions import QueueOverflowError
from vllm_lite.frontend.admission_control import check_admission


def limits(requests: int | None = None, tokens: int | None = None) -> SchedulerConfig:
    return SchedulerConfig(max_num_queued_reqs=requests, max_num_queued_tokens=tokens)


def test_without_limits_everything_is_admitted() -> None:
    check_admission(limits(), 10**6, 10**6, 10**9)


@pytest.mark.parametrize(
    ("n", "present", "admitted"), [(1, 3, True), (1, 4, False), (2, 3, False), (4, 0, True), (4, 1, False)]
)
def test_requests(n: int, present: int, admitted: bool) -> None:
    if admitted:
        check_admission(limits(requests=4), n, present, 0)
        return
    with pytest.raises(QueueOverflowError, match=rf"{n} more would exceed max_num_queued_reqs=4; try again later"):
        check_admission(limits(requests=4), n, present, 0)


def test_more_at_once_than_ever_fit_are_not_told_to_try_again() -> None:
    with pytest.raises(QueueOverflowError, match="5 more would exceed max_num_queued_reqs=4; n must be <= 4"):
        check_admission(limits(requests=4), 5, 0, 0)


@pytest.mark.parametrize(("waiting", "admitted"), [(0, True), (99, True), (100, False)])
def test_tokens_that_wait_and_not_the_requests_own(waiting: int, admitted: bool) -> None:
    if admitted:
        check_admission(limits(tokens=100), 1, 0, waiting)
        return
    with pytest.raises(QueueOverflowError, match="100 prompt tokens wait and max_num_queued_tokens is 100"):
        check_admission(limits(tokens=100), 1, 0, waiting)


def test_the_limit_on_requests_is_named_first() -> None:
    with pytest.raises(QueueOverflowError, match="max_num_queued_reqs"):
        check_admission(limits(requests=1, tokens=1), 1, 1, 1)
