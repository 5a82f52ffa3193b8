"""Clients under data parallel: several engine cores behind one front end, or one of several behind a balancer elsewhere.

Process: front end. Knows: which engine core has which request. Does not know: sockets or frames (AsyncMPClient does).
Engine cores are independent of each other: a dense model needs no step in common.
Mirrors: vllm/v1/engine/core_client.py (DPLBAsyncMPClient, DPAsyncMPClient)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import refuse
from vllm_lite.frontend.core_client.async_mp_client import AsyncMPClient
from vllm_lite.frontend.core_client.client import Bag, Posted
from vllm_lite.frontend.core_client.load_balancer import LoadBalancer
from vllm_lite.wire.messages import EngineCoreRequest


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
