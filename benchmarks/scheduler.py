"""Scheduler CPU per request and step: schedule() and update_from_output(), with prefix cache, preemption and statistics on.

    python benchmarks/scheduler.py [--running 256] [--steps 400] [--rounds 5]

Prompts of 256 tokens share beginnings of 128, answers are 64 to 512 tokens long, and newcomers replace whoever has ended.
"roomy" has blocks for everybody; "tight" has so few that requests are preempted and computed again all the time. "ahead" plans
a step before the result of the last one is in. No model runs: the sampled tokens are made up between the timed calls. CPU
seconds of this thread, the median of rounds.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections import deque
from typing import NamedTuple

from vllm_lite.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm_lite.engine_core.kv_cache_utils import get_request_block_hasher
from vllm_lite.engine_core.request import Request
from vllm_lite.engine_core.scheduler import Scheduler
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm_lite.wire.step import ModelRunnerOutput, SchedulerOutput

BLOCK_SIZE = 16
PROMPT_TOKENS, SHARED_TOKENS = 256, 128
WARM_UP_STEPS = 300


class Round(NamedTuple):
    """Microseconds for each request and step, and what happened meanwhile."""

    microseconds: float
    requests_per_step: float
    preemptions: int
    hit_rate: float


class Load:
    """Keeps `running` requests in a scheduler."""

    def __init__(self, running: int, num_blocks: int, *, ahead: bool) -> None:
        config = VllmConfig(
            ModelConfig("none", max_model_len=2048),
            CacheConfig(block_size=BLOCK_SIZE, num_gpu_blocks_override=num_blocks),
            SchedulerConfig(max_num_seqs=running, max_num_batched_tokens=8192, async_scheduling=ahead),
        )
        spec = FullAttentionSpec(BLOCK_SIZE, 1, 1, 0, "float32")
        self.scheduler = Scheduler(config, KVCacheConfig(num_blocks, {"layer": spec}, [KVCacheGroupSpec(["layer"], spec)]))
        self._hasher = get_request_block_hasher(BLOCK_SIZE)
        self._random = random.Random(0)
        self._count, self._running, self._depth = 0, running, 1 + ahead
        self._in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()

    def refill(self) -> None:
        """Add requests until there are enough."""
        rng = self._random
        while len(self.scheduler.requests) < self._running:
            family = rng.randrange(8)
            prompt = [family] * SHARED_TOKENS + [rng.randrange(30_000) for _ in range(PROMPT_TOKENS - SHARED_TOKENS)]
            params = SamplingParams(max_tokens=rng.randint(64, 512), ignore_eos=True)
            self._count += 1
            self.scheduler.add_request(Request(str(self._count), prompt, params, None, block_hasher=self._hasher))

    def steps(self, count: int) -> Round:
        """Run `count` steps."""
        scheduler, rng = self.scheduler, self._random
        seconds, requests, preemptions, queries, hits = 0.0, 0, 0, 0, 0
        for _ in range(count):
            self.refill()
            begun = time.thread_time()
            plan = scheduler.schedule()
            seconds += time.thread_time() - begun
            requests += len(plan.num_scheduled_tokens)
            preemptions += len(plan.preempted_req_ids)
            self._in_flight.append((plan, self._sample(plan, rng)))
            if len(self._in_flight) < self._depth:
                continue
            landed = self._in_flight.popleft()
            begun = time.thread_time()
            bags = scheduler.update_from_output(*landed)
            seconds += time.thread_time() - begun
            found = next(iter(bags.values())).scheduler_stats
            if found is not None and found.prefix_cache_stats is not None:
                queries += found.prefix_cache_stats.queries
                hits += found.prefix_cache_stats.hits
        return Round(seconds * 1e6 / requests, requests / count, preemptions, hits / max(1, queries))

    def _sample(self, plan: SchedulerOutput, rng: random.Random) -> ModelRunnerOutput:
        """A token for each request that reaches the end of what it knows."""
        reach = self.scheduler.requests
        rows = [
            [rng.randrange(30_000)] if reach[i].num_computed_tokens >= reach[i].num_tokens else []
            for i in plan.num_scheduled_tokens
        ]
        return ModelRunnerOutput(list(plan.num_scheduled_tokens), rows)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400, help="of one round")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    blocks_each = -(-(PROMPT_TOKENS + 512) // BLOCK_SIZE)
    pools = {"roomy": args.running * blocks_each + 1, "tight": args.running * blocks_each // 3}
    print(f"{'':14} {'us/request/step':>15} {'requests/step':>13} {'preemptions':>11} {'cache hits':>10}")
    for name, num_blocks in pools.items():
        for ahead in (False, True):
            load = Load(args.running, num_blocks, ahead=ahead)
            load.steps(WARM_UP_STEPS)
            gc.collect()
            gc.freeze()
            rounds = [load.steps(args.steps) for _ in range(args.rounds)]
            middle = statistics.median(r.microseconds for r in rounds)
            last = rounds[-1]
            title = name + (", ahead" if ahead else "")
            print(f"{title:14} {middle:15.2f} {last.requests_per_step:13.1f} {last.preemptions:11d} {last.hit_rate:10.0%}")


if __name__ == "__main__":
    main()
