"""A scheduler by hand: tests say what each step holds, and this turns it into SchedulerOutputs for a real worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_lite.config import (
    CacheConfig,
    DeviceConfig,
    LoadConfig,
    ModelConfig,
    ObservabilityConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.kv_cache_interface import KVCacheConfig
from vllm_lite.wire.step import CachedRequestData, ModelRunnerOutput, NewRequestData, SchedulerOutput
from vllm_lite.worker.worker import Worker


def make_config(
    folder: Path,
    *,
    dtype: str = "float64",
    block_size: int = 4,
    max_num_seqs: int = 32,
    load_format: str = "auto",
    trace_dir: str | None = None,
    **model: Any,
) -> VllmConfig:
    """A configuration for the CPU. `model`: what else ModelConfig is told."""
    return VllmConfig(
        ModelConfig(str(folder), model_path=str(folder), dtype=dtype, **model),
        CacheConfig(block_size=block_size),
        SchedulerConfig(max_num_seqs=max_num_seqs),
        load_config=LoadConfig(load_format),
        device_config=DeviceConfig("cpu"),
        observability_config=ObservabilityConfig(trace_dir=trace_dir),
    )


def greedy(**options: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=None, **options)


@dataclass
class DriverRequest:
    """What a scheduler would know of a request. `blocks` may start with blocks shared with others."""

    tokens: list[int]
    params: SamplingParams | PoolingParams
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    num_prompt: int = 0
    sent: bool = False

    @property
    def answer(self) -> list[int]:
        return self.tokens[self.num_prompt :]


class Driver:
    """Feeds one worker. Requests are known by name; `step` takes the number of tokens for each."""

    def __init__(self, config: VllmConfig, num_blocks: int = 200) -> None:
        self.worker = Worker(config)
        self.block_size = config.cache_config.block_size
        self.worker.initialize_from_config(KVCacheConfig(num_blocks, self.worker.get_kv_cache_specs(), []))
        self.requests: dict[str, DriverRequest] = {}
        self._free = list(range(1, num_blocks))[::-1]
        self._owners = [0] * num_blocks
        self._finished: list[str] = []
        self._preempted: list[str] = []
        self._steps = 0

    def add(self, name: str, prompt: list[int], params: SamplingParams | PoolingParams | None = None) -> DriverRequest:
        request = DriverRequest(list(prompt), params or greedy(), num_prompt=len(prompt))
        self.requests[name] = request
        return request

    def share(self, name: str, other: str, num_tokens: int) -> None:
        """Let `name` take the blocks of `other` for its first `num_tokens` tokens, whether they are computed yet or not."""
        request = self.requests[name]
        assert num_tokens % self.block_size == 0
        self._reserve(self.requests[other], num_tokens)
        request.blocks = self.requests[other].blocks[: num_tokens // self.block_size]
        for block in request.blocks:
            self._owners[block] += 1
        request.computed = num_tokens

    def finish(self, name: str) -> list[int]:
        """End a request: its row goes with the next step, its blocks go to others at once. Returns its answer."""
        request = self.requests.pop(name)
        self._release(request)
        self._finished.append(name)
        return request.answer

    def preempt(self, name: str) -> None:
        """Take a request's blocks; the next step that holds it computes everything again."""
        request = self.requests[name]
        self._release(request)
        if request.sent:
            self._preempted.append(name)
        request.computed, request.sent = 0, False

    def step(self, counts: dict[str, int], trace: str | None = None) -> ModelRunnerOutput:
        """Run one step and note its tokens."""
        output = self.plan(counts, trace)
        result = self.worker.execute_model(output)
        if result is None:
            result = self.worker.sample_tokens()
        for name, token_ids in zip(result.req_ids, result.sampled_token_ids, strict=True):
            self.requests[name].tokens += token_ids
        return result

    def plan(self, counts: dict[str, int], trace: str | None = None) -> SchedulerOutput:
        """The step's SchedulerOutput, with the requests' positions moved on."""
        self._steps += 1
        new, cached = [], CachedRequestData([], [], [], [])
        for name, count in counts.items():
            request = self.requests[name]
            fresh = self._reserve(request, request.computed + count)
            if request.sent:
                cached.req_ids.append(name)
                cached.new_block_ids.append([fresh] if fresh else None)
                cached.num_computed_tokens.append(request.computed)
                cached.num_output_tokens.append(len(request.answer))
            else:
                blocks = [list(request.blocks)]
                sampling = request.params if isinstance(request.params, SamplingParams) else None
                pooling = request.params if isinstance(request.params, PoolingParams) else None
                new.append(
                    NewRequestData(name, list(request.tokens), request.num_prompt, sampling, pooling, blocks, request.computed)
                )
                request.sent = True
            request.computed += count
        finished, self._finished = self._finished, []
        preempted, self._preempted = self._preempted, []
        total = sum(counts.values())
        return SchedulerOutput(self._steps, new, cached, dict(counts), total, finished, preempted, trace)

    def left(self, name: str) -> int:
        """Known tokens of a request that are not computed yet."""
        request = self.requests[name]
        return len(request.tokens) - request.computed

    def run(self, max_tokens: int, budget: int = 10_000) -> dict[str, list[int]]:
        """Run all requests, first come first served within `budget` tokens a step, to `max_tokens` tokens each."""
        names = list(self.requests)
        while pending := [name for name in names if len(self.requests[name].answer) < max_tokens]:
            counts, room = {}, budget
            for name in pending:
                if count := min(self.left(name), room):
                    counts[name] = count
                    room -= count
            self.step(counts)
        return {name: self.finish(name) for name in names}

    def _reserve(self, request: DriverRequest, num_tokens: int) -> list[int]:
        fresh = [self._free.pop() for _ in range(-(-num_tokens // self.block_size) - len(request.blocks))]
        for block in fresh:
            self._owners[block] += 1
        request.blocks += fresh
        return fresh

    def _release(self, request: DriverRequest) -> None:
        for block in request.blocks:
            self._owners[block] -= 1
            if self._owners[block] == 0:
                self._free.append(block)
        request.blocks = []
