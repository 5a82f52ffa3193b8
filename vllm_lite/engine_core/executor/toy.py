"""A model small enough to check the scheduler with: the next token is a hash of every token before it.

Process: engine core. Knows: paged blocks that hold token ids instead of K and V, and each request's block table. Does not know:
torch, or how the scheduler chose those blocks. The hash is taken over the tokens *read back* through the block table, so a
block that was shared, freed or skipped wrongly shows as a wrong token. `expected_tokens` is the same answer without any blocks.
Mirrors: nothing in vLLM.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import check_number
from vllm_lite.engine_core.executor.uniproc_executor import UniProcExecutor
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.kv_cache_interface import FullAttentionSpec, KVCacheConfig
from vllm_lite.wire.step import LogprobsLists, ModelRunnerOutput, NewRequestData, SchedulerOutput

FIRST_TOKEN, NUM_TOKENS = 32, 95  # answers are printable ASCII, one byte for each token
DEFAULT_BLOCKS = 8192
EMBEDDING_SIZE = 8
_MASK = (1 << 64) - 1


def expected_tokens(prompt_token_ids: Sequence[int], num_tokens: int, params: SamplingParams | None = None) -> list[int]:
    """The first `num_tokens` tokens of the toy's answer, worked out plainly: what every schedule must yield."""
    tokens = list(prompt_token_ids)
    for num_output_tokens in range(num_tokens):
        tokens.append(_next_token(np.array(tokens, dtype=np.int64), num_output_tokens, params))
    return tokens[len(prompt_token_ids) :]


class ToyWorker:
    """Answers the calls of `vllm_lite.worker.worker.Worker` without a model.

    Reads from `additional_config`: `toy_step_time` (seconds each step takes at least), `toy_error_token` (a prompt that holds
    this id fails alone), `toy_crash_at_step` (that step fails as a whole).
    """

    def __init__(self, vllm_config: VllmConfig, rank: int = 0) -> None:
        self.rank = rank
        settings = vllm_config.additional_config
        self._step_time = settings.get("toy_step_time", 0.0)
        check_number("toy_step_time", self._step_time, 0)
        self._error_token = settings.get("toy_error_token")
        self._crash_at_step = settings.get("toy_crash_at_step")
        self._block_size = vllm_config.cache_config.block_size
        self._num_blocks = 0
        self._allocate(0)
        self._requests: dict[str, NewRequestData] = {}  # `prefill_token_ids` also takes the tokens of the answer
        self._scheduler_output: SchedulerOutput | None = None

    def get_info(self) -> dict[str, Any]:
        """Facts for READY."""
        info = {"dtype": "int64", "device": "cpu", "attention_backend": "toy", "weights_bytes": 0, "load_seconds": 0.0}
        return {**info, "supported_tasks": ["generate", "embed"]}

    def get_kv_cache_specs(self) -> dict[str, FullAttentionSpec]:
        """One layer whose "K" is the token id."""
        return {"toy": FullAttentionSpec(self._block_size, 1, 1, 0, "int64")}

    def determine_available_memory(self) -> int:
        """Room for 8192 blocks, in bytes."""
        return DEFAULT_BLOCKS * self.get_kv_cache_specs()["toy"].page_size_bytes

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the blocks, filled with an id that no prompt holds."""
        self._num_blocks = kv_cache_config.num_blocks
        self._allocate(self._num_blocks)

    def sleep(self, level: int) -> None:
        """Give up the blocks; there are no weights."""
        self.release_kv_cache_memory()

    def release_kv_cache_memory(self) -> None:
        """Give up the blocks: whoever uses one now fails."""
        self._allocate(0)

    def wake_up(self, tags: list[str]) -> None:
        """Take the blocks back, without what they held."""
        if "kv_cache" in tags:
            self._allocate(self._num_blocks)

    def kv_cache_bytes(self) -> int:
        """Bytes of the blocks."""
        return self._blocks.nbytes

    def _allocate(self, num_blocks: int) -> None:
        self._blocks: npt.NDArray[np.int64] = np.full((num_blocks, self._block_size), -1, dtype=np.int64)

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        """Write the scheduled tokens of every request into its blocks; the reads come later, in `sample_tokens`."""
        started = time.monotonic()
        if scheduler_output.step == self._crash_at_step:
            raise RuntimeError(f"the toy was told to crash at step {scheduler_output.step}")
        self._update_requests(scheduler_output)
        if not scheduler_output.num_scheduled_tokens:
            return ModelRunnerOutput([], [])
        for req_id, count in scheduler_output.num_scheduled_tokens.items():
            self._write(self._requests[req_id], count)
        self._scheduler_output = scheduler_output
        time.sleep(max(0.0, started + self._step_time - time.monotonic()))
        return None

    def sample_tokens(self, grammar_output: None = None) -> ModelRunnerOutput:
        """One token for each request whose prompt is complete, from what its block table leads to."""
        assert self._scheduler_output is not None
        scheduled, self._scheduler_output = self._scheduler_output.num_scheduled_tokens, None
        output = ModelRunnerOutput(list(scheduled), [], logprobs=[], pooler_output=[])
        for req_id in scheduled:
            self._sample_one(self._requests[req_id], output)
        return output

    def sleep_for(self, seconds: float) -> int:
        """Keep the worker busy; its rank comes back. For tests of time-outs."""
        time.sleep(seconds)
        return self.rank

    def shutdown(self) -> None:
        """Drop every request."""
        self._requests.clear()

    def _update_requests(self, scheduler_output: SchedulerOutput) -> None:
        for req_id in (*scheduler_output.finished_req_ids, *scheduler_output.preempted_req_ids):
            self._requests.pop(req_id, None)
        for new in scheduler_output.scheduled_new_reqs:
            token_ids, block_ids = list(new.prefill_token_ids), list(new.block_ids[0])
            self._requests[new.req_id] = replace(new, prefill_token_ids=token_ids, block_ids=[block_ids])
        cached = scheduler_output.scheduled_cached_reqs
        columns = cached.req_ids, cached.new_block_ids, cached.num_computed_tokens
        for req_id, new_block_ids, num_computed_tokens in zip(*columns, strict=True):
            request = self._requests[req_id]
            request.num_computed_tokens = num_computed_tokens
            if new_block_ids is not None:
                request.block_ids[0].extend(new_block_ids[0])

    def _write(self, request: NewRequestData, count: int) -> None:
        start, end = request.num_computed_tokens, request.num_computed_tokens + count
        tokens = request.prefill_token_ids[start:end]
        assert len(tokens) == count, f"{request.req_id}: scheduled to {end} of {len(request.prefill_token_ids)} tokens"
        for position, token in enumerate(tokens, start):
            block, offset = divmod(position, self._block_size)
            self._blocks[request.block_ids[0][block], offset] = token
        request.num_computed_tokens = end

    def _sample_one(self, request: NewRequestData, output: ModelRunnerOutput) -> None:
        assert output.logprobs is not None
        assert output.pooler_output is not None
        known = request.prefill_token_ids
        tokens: list[int] = []
        logprobs = pooled = None
        if self._error_token in known:
            output.errors[request.req_id] = f"the toy was told to fail on token {self._error_token}"
            known.append(0)  # the next step may hold it already
        elif request.num_computed_tokens == len(known):
            context = self._blocks[request.block_ids[0]].reshape(-1)[: request.num_computed_tokens]
            if request.pooling_params is not None:
                pooled = _embedding(context, request.pooling_params)
            else:
                tokens = [_next_token(context, len(known) - request.num_prompt_tokens, request.sampling_params)]
                logprobs = _logprobs(tokens[0], request.sampling_params)
                known.extend(tokens)
        output.sampled_token_ids.append(tokens)
        output.logprobs.append(logprobs)
        output.pooler_output.append(pooled)


class ToyExecutor(UniProcExecutor):
    """The toy in the engine core's own process; with async scheduling a thread of its own takes the steps, in order."""

    max_concurrent_batches = 2

    def __init__(self, vllm_config: VllmConfig) -> None:
        super().__init__(vllm_config)
        self._thread = ThreadPoolExecutor(1, "toy") if vllm_config.scheduler_config.async_scheduling else None

    def _make_worker(self) -> ToyWorker:
        return ToyWorker(self.vllm_config)

    def submit(self, method: str, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call one of the worker's methods, now or in the thread."""
        if self._thread is None:
            return super().submit(method, *args, **kwargs)
        return self._thread.submit(getattr(self.worker, method), *args, **kwargs)

    def shutdown(self) -> None:
        """End the thread, drop every request."""
        if self._thread is not None:
            self._thread.shutdown()
        super().shutdown()


def _next_token(context: npt.NDArray[np.int64], num_output_tokens: int, params: SamplingParams | None) -> int:
    seed = params.seed if params is not None and params.seed is not None else 0
    weights = np.arange(1, len(context) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    weights ^= weights >> np.uint64(29)  # without this the sum would be a multiple of a small number, and faults could cancel
    mixed = (int(((context.astype(np.uint64) + np.uint64(1)) * weights).sum()) + seed * 0xD1342543DE82EF95) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    token = FIRST_TOKEN + (mixed ^ (mixed >> 31)) % NUM_TOKENS
    if params is not None and num_output_tokens < params.min_tokens:
        while token in params.all_stop_token_ids:
            token = FIRST_TOKEN + (token + 1 - FIRST_TOKEN) % NUM_TOKENS
    return token


def _logprobs(token: int, params: SamplingParams | None) -> LogprobsLists | None:
    if params is None or params.logprobs is None:
        return None
    count = NUM_TOKENS if params.logprobs == -1 else params.logprobs
    candidates = FIRST_TOKEN + (token - FIRST_TOKEN + np.arange(count, dtype=np.int32)) % NUM_TOKENS
    ids = np.concatenate([[token], candidates]).astype(np.int32)
    values = np.concatenate([[-0.5], -0.5 * np.arange(1, count + 1)]).astype(np.float32)
    return LogprobsLists(ids[None, :], values[None, :], np.ones(1, dtype=np.int32))


def _embedding(context: npt.NDArray[np.int64], params: PoolingParams) -> npt.NDArray[np.float32]:
    weights = np.arange(1, len(context) + 1, dtype=np.float64)
    vector = np.bincount(context % EMBEDDING_SIZE, weights=weights, minlength=EMBEDDING_SIZE)
    return (vector / np.linalg.norm(vector) if params.normalize else vector).astype(np.float32)
