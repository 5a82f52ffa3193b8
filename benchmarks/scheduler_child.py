"""One scheduler that is kept busy. Started by scheduler.py.

    python benchmarks/scheduler_child.py vllm_lite|vllm MODEL_FOLDER RUNNING roomy|tight now|ahead

Each line on standard input is a number of steps; the answer is a line of JSON with a round's figures. The same load drives both
schedulers, since their names are the same; only their construction and the shape of a step's result differ.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

BLOCK_SIZE = 16
PROMPT_TOKENS, SHARED_TOKENS, LONGEST_ANSWER = 256, 128, 512
MAX_MODEL_LEN, MAX_BATCHED = 2048, 8192

NewRequest = Callable[[str, list[int], int], Any]
Result = Callable[[list[str], list[list[int]]], Any]


def vllm_lite_parts(model: str, running: int, num_blocks: int, ahead: bool) -> tuple[Any, NewRequest, Result]:
    """The scheduler, and how a request and a step's result are made for it."""
    from vllm_lite.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm_lite.engine_core.kv_cache_utils import get_request_block_hasher
    from vllm_lite.engine_core.request import Request
    from vllm_lite.engine_core.scheduler import Scheduler
    from vllm_lite.sampling_params import SamplingParams
    from vllm_lite.wire.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm_lite.wire.step import ModelRunnerOutput

    config = VllmConfig(
        ModelConfig(model, max_model_len=MAX_MODEL_LEN),
        CacheConfig(block_size=BLOCK_SIZE, num_gpu_blocks_override=num_blocks),
        SchedulerConfig(max_num_seqs=running, max_num_batched_tokens=MAX_BATCHED, async_scheduling=ahead),
    )
    spec = FullAttentionSpec(BLOCK_SIZE, 1, 1, 0, "float32")
    scheduler = Scheduler(config, KVCacheConfig(num_blocks, {"layer": spec}, [KVCacheGroupSpec(["layer"], spec)]))
    hasher = get_request_block_hasher(BLOCK_SIZE)

    def new_request(name: str, prompt: list[int], max_tokens: int) -> Request:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        return Request(name, prompt, params, None, block_hasher=hasher)

    return scheduler, new_request, ModelRunnerOutput


def vllm_parts(model: str, running: int, num_blocks: int, ahead: bool) -> tuple[Any, NewRequest, Result]:
    """The same of vLLM."""
    import torch
    from vllm import SamplingParams
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

    cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True)
    cache.num_gpu_blocks = num_blocks
    config = VllmConfig(
        model_config=ModelConfig(model=model, dtype="float32", max_model_len=MAX_MODEL_LEN),
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_num_seqs=running,
            max_num_batched_tokens=MAX_BATCHED,
            max_model_len=MAX_MODEL_LEN,
            is_encoder_decoder=False,
            async_scheduling=ahead,
        ),
        device_config=DeviceConfig("cpu"),
    )
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
    blocks = KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    scheduler = (AsyncScheduler if ahead else Scheduler)(
        vllm_config=config,
        kv_cache_config=blocks,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=True,
    )
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)

    def new_request(name: str, prompt: list[int], max_tokens: int) -> Request:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        return Request(name, prompt, params, None, block_hasher=hasher)

    def result(names: list[str], rows: list[list[int]]) -> ModelRunnerOutput:
        return ModelRunnerOutput(req_ids=names, req_id_to_index={n: i for i, n in enumerate(names)}, sampled_token_ids=rows)

    return scheduler, new_request, result


class Load:
    """Keeps `running` requests in a scheduler."""

    def __init__(self, package: str, model: str, running: int, num_blocks: int, *, ahead: bool) -> None:
        parts = vllm_parts if package == "vllm" else vllm_lite_parts
        self.scheduler, self._new_request, self._result = parts(model, running, num_blocks, ahead)
        self._random = random.Random(0)
        self._count, self._running, self._depth = 0, running, 1 + ahead
        self._in_flight: deque[tuple[Any, Any]] = deque()

    def refill(self) -> None:
        """Add requests until there are enough."""
        rng = self._random
        while len(self.scheduler.requests) < self._running:
            family = rng.randrange(8)
            prompt = [family] * SHARED_TOKENS + [rng.randrange(30_000) for _ in range(PROMPT_TOKENS - SHARED_TOKENS)]
            self._count += 1
            self.scheduler.add_request(self._new_request(str(self._count), prompt, rng.randint(64, LONGEST_ANSWER)))

    def steps(self, count: int) -> dict[str, float]:
        """Run `count` steps: microseconds for each request and step, and what happened meanwhile."""
        scheduler, clock = self.scheduler, time.thread_time
        seconds, requests, preemptions, queries, hits = 0.0, 0, 0, 0, 0
        for _ in range(count):
            self.refill()
            begun = clock()
            plan = scheduler.schedule()
            seconds += clock() - begun
            requests += len(plan.num_scheduled_tokens)
            preemptions += len(plan.preempted_req_ids or ())
            self._in_flight.append((plan, self._sample(plan)))
            if len(self._in_flight) < self._depth:
                continue
            landed = self._in_flight.popleft()
            begun = clock()
            bags = scheduler.update_from_output(*landed)
            seconds += clock() - begun
            found = next(iter(bags.values())).scheduler_stats.prefix_cache_stats
            if found is not None:
                queries, hits = queries + found.queries, hits + found.hits
        return {
            "microseconds": seconds * 1e6 / requests,
            "requests": requests / count,
            "preemptions": preemptions,
            "hit_rate": hits / max(1, queries),
        }

    def _sample(self, plan: Any) -> Any:
        """A token for each request that reaches the end of what it knows."""
        reach, rng, names = self.scheduler.requests, self._random, list(plan.num_scheduled_tokens)
        rows = [[rng.randrange(30_000)] if reach[name].num_computed_tokens >= reach[name].num_tokens else [] for name in names]
        return self._result(names, rows)


def main(package: str, model: str, running: str, pool: str, when: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints to standard output, too
    for_all = int(running) * -(-(PROMPT_TOKENS + LONGEST_ANSWER) // BLOCK_SIZE)
    load = Load(package, model, int(running), for_all + 1 if pool == "roomy" else for_all // 3, ahead=when == "ahead")
    for line in sys.stdin:
        found = load.steps(int(line))
        print(json.dumps(found), file=answers, flush=True)
        gc.collect()
        gc.freeze()  # as both engines do once they stand


if __name__ == "__main__":
    main(*sys.argv[1:])
