"""A scheduler with the toy behind it, and the checks that hold after every step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from vllm_lite.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm_lite.engine_core.executor.toy import ToyExecutor, expected_tokens
from vllm_lite.engine_core.kv_cache_utils import get_request_block_hasher
from vllm_lite.engine_core.request import Request
from vllm_lite.engine_core.scheduler import Scheduler
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm_lite.wire.messages import EngineCoreOutput, FinishReason
from vllm_lite.wire.step import ModelRunnerOutput, SchedulerOutput


def make_config(
    *, num_blocks: int = 100, block_size: int = 4, max_model_len: int | None = None, caching: bool = True, **scheduler: Any
) -> VllmConfig:
    """A configuration for the toy; `scheduler` are fields of SchedulerConfig."""
    length = max_model_len or (num_blocks - 1) * block_size
    scheduler.setdefault("max_num_batched_tokens", 10_000)
    config = VllmConfig(
        ModelConfig("toy", max_model_len=length),
        CacheConfig(block_size=block_size, num_gpu_blocks_override=num_blocks, enable_prefix_caching=caching),
        SchedulerConfig(**scheduler),
    )
    config.parallel_config.distributed_executor_backend = "toy"
    return config


def kv_config(num_blocks: int, block_size: int) -> KVCacheConfig:
    spec = FullAttentionSpec(block_size, 1, 1, 0, "int64")
    return KVCacheConfig(num_blocks, {"toy": spec}, [KVCacheGroupSpec(["toy"], spec)])


def make_request(
    request_id: str,
    prompt: list[int],
    params: SamplingParams | None = None,
    *,
    block_size: int = 4,
    pooling: PoolingParams | None = None,
    **fields: Any,
) -> Request:
    fields.setdefault("arrival_time", 0.0)
    params = None if pooling is not None else params or SamplingParams(max_tokens=4)
    return Request(request_id, prompt, params, pooling, block_hasher=get_request_block_hasher(block_size), **fields)


@dataclass
class Answer:
    """What one request received."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    rows: list[EngineCoreOutput] = field(default_factory=list)


class Bench:
    """Runs steps by hand: schedule, execute, whatever the test does in between, update."""

    def __init__(self, config: VllmConfig, **toy: Any) -> None:
        config.additional_config.update(toy)
        self.config = config
        num_blocks = config.cache_config.num_gpu_blocks_override
        assert num_blocks is not None
        self.block_size = config.cache_config.block_size
        kv_cache_config = kv_config(num_blocks, self.block_size)
        self.scheduler = Scheduler(config, kv_cache_config)
        self.toy = ToyExecutor(config)
        self.toy.initialize_from_config(kv_cache_config)
        self.requests: dict[str, Request] = {}
        self.answers: dict[str, Answer] = {}

    def add(self, request_id: str, prompt: list[int], params: SamplingParams | None = None, **fields: Any) -> Request:
        request = make_request(request_id, prompt, params, block_size=self.block_size, **fields)
        self.scheduler.add_request(request)
        self.requests[request_id] = request
        self.answers[request_id] = Answer()
        return request

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        return self.toy.execute_model(plan).result() or self.toy.sample_tokens().result()

    def update(self, plan: SchedulerOutput, result: ModelRunnerOutput) -> None:
        for bag in self.scheduler.update_from_output(plan, result).values():
            for row in bag.outputs:
                answer = self.answers[row.request_id]
                assert answer.finish_reason is None, f"{row.request_id} got a row after its end"
                answer.rows.append(row)
                answer.token_ids += row.new_token_ids
                answer.finish_reason = row.finish_reason

    def step(self) -> dict[str, int]:
        """One whole step; the tokens scheduled for each request."""
        plan = self.scheduler.schedule()
        self.update(plan, self.execute(plan))
        return plan.num_scheduled_tokens

    def run(self, max_steps: int = 2000) -> None:
        """Step until nothing is left to do."""
        for _ in range(max_steps):
            if not self.scheduler.has_requests():
                return
            self.step()
        raise AssertionError(f"not done after {max_steps} steps: {list(self.scheduler.requests.values())}")

    def expected(self, request_id: str, count: int) -> list[int]:
        request = self.requests[request_id]
        prompt = request.all_token_ids[: request.num_prompt_tokens]
        return expected_tokens(prompt, count, request.sampling_params)

    def check_blocks(self) -> None:
        """Every block is counted exactly, and what the prefix cache promises lies in the toy's blocks."""
        manager = self.scheduler.kv_cache_manager
        pool = manager.block_pool
        held = Counter(block.block_id for blocks in manager.req_to_blocks.values() for block in blocks)
        assert {b.block_id: b.ref_cnt for b in pool.blocks if b.ref_cnt} == dict(held)
        free = [block.block_id for block in pool.free_block_queue]
        assert len(free) == len(set(free)) == pool.get_num_free_blocks()
        assert set(free) == {b.block_id for b in pool.blocks} - set(held) - {0}
        assert set(manager.req_to_blocks) == {r.request_id for r in self.scheduler.running}
        contents = {
            block_hash: request.all_token_ids[index * self.block_size : (index + 1) * self.block_size]
            for request in self.requests.values()
            for index, block_hash in enumerate(request.block_hashes)
        }
        for block_hash, block in pool.cached_block_hash_to_block.items():
            assert block.block_hash == block_hash
            assert self.toy.worker._blocks[block.block_id].tolist() == contents[block_hash]

    def check_empty(self) -> None:
        """Nothing is left of anybody."""
        manager = self.scheduler.kv_cache_manager
        assert manager.block_pool.get_num_free_blocks() == manager.block_pool.num_gpu_blocks - 1
        assert manager.usage == 0.0
        assert not manager.req_to_blocks
        assert not manager._num_cached_blocks
        assert not self.scheduler.requests
        assert not self.scheduler.running
        assert len(self.scheduler.waiting) == 0
        assert not self.toy.worker._requests
