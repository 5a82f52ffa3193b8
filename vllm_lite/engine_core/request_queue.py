"""The waiting room: requests to be scheduled for the first time, or again after preemption.

Process: engine core. Knows: the order of requests. Does not know: blocks or budgets.
Mirrors: vllm/v1/core/sched/request_queue.py (both of its queues in one)
"""

import heapq
from collections.abc import Container, Iterator

from vllm_lite.engine_core.request import Request


class RequestQueue:
    """First come, first served, preempted ones before all; or `by_priority`: smaller first, then earlier arrival, where a
    preempted request finds its old place."""

    def __init__(self, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._heap: list[tuple[tuple[int, float, str], Request]] = []
        self._front = self._back = 0  # places in the line of those who come first, first served

    def add_request(self, request: Request) -> None:
        """Take in a new request."""
        self._back += 1
        self._put(request, self._back)

    def prepend_request(self, request: Request) -> None:
        """Take back a preempted request."""
        self._front -= 1
        self._put(request, self._front)

    def _put(self, request: Request, place: int) -> None:
        key = request.sort_key if self._by_priority else (place, 0.0, "")
        heapq.heappush(self._heap, (key, request))

    def peek_request(self) -> Request:
        """The next request. Raises IndexError where none waits."""
        return self._heap[0][1]

    def pop_request(self) -> Request:
        """The next request, taken out. Raises IndexError where none waits."""
        return heapq.heappop(self._heap)[1]

    def remove_requests(self, request_ids: Container[str]) -> None:
        """Take out those of `request_ids` that are here, in one pass, whatever their number."""
        self._heap = [entry for entry in self._heap if entry[1].request_id not in request_ids]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in sorted(self._heap))
