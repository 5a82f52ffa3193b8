"""The waiting room: requests to be scheduled for the first time, or again after preemption.

Process: engine core. Knows: the order of requests. Does not know: blocks or budgets.
Mirrors: vllm/v1/core/sched/request_queue.py
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Container, Iterator

from vllm_lite.engine_core.request import Request


class FCFSRequestQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def add_request(self, request: Request) -> None:
        """Take in a new request."""
        self._requests.append(request)

    def prepend_request(self, request: Request) -> None:
        """Take back a preempted request, before those that came after it."""
        self._requests.appendleft(request)

    def peek_request(self) -> Request:
        """The next request. Raises IndexError where none waits."""
        return self._requests[0]

    def pop_request(self) -> Request:
        """The next request, taken out. Raises IndexError where none waits."""
        return self._requests.popleft()

    def remove_requests(self, request_ids: Container[str]) -> None:
        """Take out those of `request_ids` that are here, in one pass, whatever their number."""
        self._requests = deque(r for r in self._requests if r.request_id not in request_ids)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


class PriorityRequestQueue:
    """The same, smaller priority first, then earlier arrival; a preempted request finds its old place by its arrival time."""

    def __init__(self) -> None:
        self._heap: list[Request] = []

    def add_request(self, request: Request) -> None:
        """Put it where its priority and arrival say."""
        heapq.heappush(self._heap, request)

    prepend_request = add_request

    def peek_request(self) -> Request:
        """The most urgent."""
        return self._heap[0]

    def pop_request(self) -> Request:
        """The most urgent, taken out."""
        return heapq.heappop(self._heap)

    def remove_requests(self, request_ids: Container[str]) -> None:
        """One pass, whatever their number."""
        self._heap = [r for r in self._heap if r.request_id not in request_ids]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self._heap))


RequestQueue = FCFSRequestQueue | PriorityRequestQueue


def create_request_queue(policy: str) -> RequestQueue:
    """The queue for `scheduler_config.policy`: "fcfs" or "priority"."""
    return PriorityRequestQueue() if policy == "priority" else FCFSRequestQueue()
