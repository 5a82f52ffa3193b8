"""Clients under data parallel: several engine cores behind one front end, or one of several behind a balancer elsewhere.

Process: front end, on the event loop. Knows: which engine core has which request, and what each said last. Does not know:
sockets or frames (AsyncMPClient does).
Engine cores are independent of each other: a dense model needs no step in common. What was sent counts at once, so a burst is
spread although no engine core has said anything yet; the other front ends are taken to have sent as much.
Mirrors: vllm/v1/engine/core_client.py (DPLBAsyncMPClient, DPAsyncMPClient)
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import refuse
from vllm_lite.frontend.core_client.async_mp_client import AsyncMPClient
from vllm_lite.frontend.core_client.client import Bag, Posted
from vllm_lite.wire.messages import EngineCoreOutputs, EngineCoreRequest, FinishReason

FULL_CACHE_WEIGHT = 6.0  # how much a waiting request weighs more as the KV cache goes from half full to full, times a half


class DPLBAsyncMPClient(AsyncMPClient):
    """`data_parallel_size` engine cores; each request goes to one of them, and its abort too.

    The death of one is the death of all: its requests cannot go on, and nobody could say which callers are still served.
    """

    def __init__(self, vllm_config: VllmConfig, client_addresses: Mapping[str, str] | None = None) -> None:
        super().__init__(vllm_config, client_addresses)
        parallel = vllm_config.parallel_config
        self.balancer = LoadBalancer(parallel.data_parallel_size, parallel.api_process_count, parallel.api_process_rank)

    async def get_bag_async(self) -> Bag:
        """Wait for the next bag, of whichever engine core, or what the coordinator says of one."""
        bag = await super().get_bag_async()
        self.balancer.observe(bag.outputs)
        return bag

    async def add_request_async(self, request: EngineCoreRequest) -> Posted:
        """Send a request to the engine core that it names, else to the one with the least to do."""
        asked, scores = request.data_parallel_rank, self.balancer.scores()
        index = self.balancer.choose(request.request_id, asked)
        try:
            return self._post(request, index)._replace(choice="least_busy" if asked is None else "asked", scores=scores)
        except BaseException:
            self.balancer.forget(request.request_id)
            raise

    def _by_engine(self, request_ids: Sequence[str]) -> dict[int, list[str]]:
        return self.balancer.by_engine(request_ids)


class DPAsyncMPClient(AsyncMPClient):
    """The engine core of this front end's own rank; a balancer in front of several front ends chooses among them."""

    async def add_request_async(self, request: EngineCoreRequest) -> Posted:
        """Send a request, which must be meant for this rank."""
        (rank,) = self.engine_indexes
        if request.data_parallel_rank not in (None, rank):
            raise refuse("data_parallel_rank", request.data_parallel_rank, f"{rank}, the only one behind this front end")
        return self._post(request, rank)


class LoadBalancer:
    """Over engine cores 0 to `count` - 1, for front end `client_index` of `client_count`. Equal loads take turns, and each
    front end begins with another one."""

    def __init__(self, count: int, client_count: int = 1, client_index: int = 0) -> None:
        self._loads = [_Load() for _ in range(count)]
        self._client_count = client_count
        self._start = count * client_index // client_count
        self.reqs_in_flight: dict[str, int] = {}  # internal id: engine core

    def scores(self) -> list[float]:
        """How busy each engine core is, as far as is known."""
        return [load.score(self._client_count) for load in self._loads]

    def choose(self, request_id: str, data_parallel_rank: int | None = None) -> int:
        """The engine core for a request that is about to be sent: the one named, the one that has it, else the least loaded."""
        index = self.reqs_in_flight.get(request_id) if data_parallel_rank is None else data_parallel_rank
        if index is None:
            count = len(self._loads)
            order = [(self._start + i) % count for i in range(count)]
            index = min(order, key=self.scores().__getitem__)  # the first of equals
            self._start = (self._start + 1) % count
        load = self._loads[index]
        load.waiting += self._client_count  # until the engine core says how many there are
        if request_id not in self.reqs_in_flight:
            self.reqs_in_flight[request_id] = index
            load.in_flight += 1
        return index

    def forget(self, request_id: str) -> int | None:
        """The request has ended, or is given up; returns the engine core that had it, None where none is known."""
        index = self.reqs_in_flight.pop(request_id, None)
        if index is not None:
            self._loads[index].in_flight -= 1
        return index

    def by_engine(self, request_ids: Iterable[str]) -> dict[int, list[str]]:
        """Forget these requests; those that were in flight, by engine core."""
        found: dict[int, list[str]] = {}
        for request_id in request_ids:
            index = self.forget(request_id)
            if index is not None:
                found.setdefault(index, []).append(request_id)
        return found

    def observe(self, outputs: EngineCoreOutputs) -> None:
        """What a bag says: who has ended, and how much there is to do. The answer to one part of a session is no end."""
        for request_id in outputs.finished_requests or ():
            self.forget(request_id)
        for row in outputs.outputs:  # an end outside a step is told by its row alone
            if row.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
                self.forget(row.request_id)
        stats = outputs.scheduler_stats
        if stats is not None:
            load = self._loads[outputs.engine_index]
            load.waiting, load.running = stats.num_waiting_reqs, stats.num_running_reqs
            load.kv_cache_usage = stats.kv_cache_usage


@dataclass(slots=True)
class _Load:
    """One engine core: what it said last, and how many requests of ours it has."""

    waiting: int = 0
    running: int = 0
    kv_cache_usage: float = 0.0
    in_flight: int = 0

    def score(self, client_count: int) -> float:
        score: float = max(client_count * self.in_flight, self.waiting + self.running)
        return score + self.waiting * FULL_CACHE_WEIGHT * max(0.0, self.kv_cache_usage - 0.5)
