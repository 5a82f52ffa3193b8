"""The waiting room's order."""

from __future__ import annotations

import pytest

from tests.engine_core.harness import make_request
from vllm_lite.engine_core.request_queue import RequestQueue


def ids(queue: RequestQueue) -> list[str]:
    return [request.request_id for request in queue]


def test_first_come_first_served_with_preempted_ones_in_front() -> None:
    queue = RequestQueue(by_priority=False)
    for name in "abc":
        queue.add_request(make_request(name, [1]))
    queue.prepend_request(make_request("late", [1], priority=9, arrival_time=99.0))
    assert ids(queue) == ["late", "a", "b", "c"]
    assert queue.peek_request() is queue.pop_request()
    assert ids(queue) == ["a", "b", "c"]


def test_priority_then_arrival_then_id() -> None:
    queue = RequestQueue(by_priority=True)
    queue.add_request(make_request("b", [1], priority=1, arrival_time=1.0))
    queue.add_request(make_request("c", [1], priority=0, arrival_time=3.0))
    queue.add_request(make_request("a", [1], priority=1, arrival_time=1.0))
    queue.prepend_request(make_request("preempted", [1], priority=1, arrival_time=0.5))
    assert ids(queue) == ["c", "preempted", "a", "b"]
    assert [queue.pop_request().request_id for _ in range(4)] == ["c", "preempted", "a", "b"]


@pytest.mark.parametrize("by_priority", [False, True])
def test_removing_takes_out_only_those_named(by_priority: bool) -> None:
    queue = RequestQueue(by_priority)
    for number, name in enumerate("dcba"):
        queue.add_request(make_request(name, [1], arrival_time=float(number)))
    queue.remove_requests({"c", "a", "unknown"})
    assert ids(queue) == ["d", "b"]
    assert len(queue) == 2
    queue.pop_request()
    queue.pop_request()
    assert not queue
    with pytest.raises(IndexError):
        queue.peek_request()
    with pytest.raises(IndexError):
        queue.pop_request()
