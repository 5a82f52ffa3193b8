"""One step's plan and its result, between the scheduler and the workers, and the calls that carry both to other processes.

Process: engine core and worker. Knows: columns of ids and counts. Does not know: tensors (arrays are numpy), or queues.
Mirrors: vllm/v1/core/sched/output.py, vllm/v1/outputs.py
"""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.kv_cache_interface import FullAttentionSpec, KVCacheConfig


class NewRequestData(msgspec.Struct, array_like=True, gc=False):
    """A request the worker sees for the first time, or again after preemption or with a session's next part: then
    `prefill_token_ids` also holds its answer so far. `block_ids` has one list for each KV cache group."""

    req_id: str
    prefill_token_ids: list[int]
    num_prompt_tokens: int
    sampling_params: SamplingParams | None
    pooling_params: PoolingParams | None
    block_ids: list[list[int]]
    num_computed_tokens: int


class CachedRequestData(msgspec.Struct, array_like=True, gc=False):
    """Requests the worker already knows, as parallel columns. `new_block_ids[i]` is None where no block was added."""

    req_ids: list[str] = []
    new_block_ids: list[list[list[int]] | None] = []
    num_computed_tokens: list[int] = []
    num_output_tokens: list[int] = []


class SchedulerOutput(msgspec.Struct, array_like=True, gc=False):
    """What to compute in one step. `num_scheduled_tokens` is in batch order: running requests first, then new ones.

    `step_trace` is the traceparent of the span under which the worker runs, None where the step is not traced.
    `finished_req_ids` and `preempted_req_ids` are the requests whose worker state can go.
    """

    step: int
    scheduled_new_reqs: list[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    finished_req_ids: list[str] = []
    preempted_req_ids: list[str] = []
    step_trace: str | None = None

    def num_computed_tokens(self, req_id: str) -> int:
        """How many tokens of a scheduled request were computed before this step."""
        for new in self.scheduled_new_reqs:
            if new.req_id == req_id:
                return new.num_computed_tokens
        cached = self.scheduled_cached_reqs
        return cached.num_computed_tokens[cached.req_ids.index(req_id)]


class LogprobsLists(msgspec.Struct, array_like=True, gc=False):
    """Log probabilities of n positions, k candidates each, the sampled (or prompt) token first.

    `logprob_token_ids` int32 [n, k+1]; `logprobs` float32 [n, k+1]; `sampled_token_ranks` int32 [n], counted from 1.
    """

    logprob_token_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    sampled_token_ranks: npt.NDArray[np.int32]


class ModelRunnerOutput(msgspec.Struct, array_like=True, gc=False):
    """What a step made. Row i belongs to `req_ids[i]`; a chunk that did not reach the end of its prompt has an empty row.

    `logprobs[i]` covers row i's tokens (None where not asked for). `prompt_logprobs` is by request id, for the chunk just
    computed. `pooler_output[i]` is float32 [hidden_size]. `errors`: requests that failed on their own, with the reason.
    """

    req_ids: list[str]
    sampled_token_ids: list[list[int]]
    logprobs: list[LogprobsLists | None] | None = None
    prompt_logprobs: dict[str, LogprobsLists] = {}
    pooler_output: list[Any] | None = None
    errors: dict[str, str] = {}


class WorkerCall(msgspec.Struct, array_like=True, omit_defaults=True):
    """`method` is called with `args` and `kwargs`, or with the one typed argument that is set.

    Only worker `output_rank` answers; None: all do. `call_id` grows by one with each call.
    """

    call_id: int
    method: str
    output_rank: int | None = None
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    scheduler_output: SchedulerOutput | None = None
    kv_cache_config: KVCacheConfig | None = None


class WorkerReply(msgspec.Struct, array_like=True, omit_defaults=True):
    """The answer to `call_id` (0: the worker stands, or says why not). A set `error_type` means that the call raised."""

    call_id: int
    error_type: str | None = None
    error: str = ""
    result: Any = None
    model_output: ModelRunnerOutput | None = None
    kv_cache_specs: dict[str, FullAttentionSpec] | None = None

    @property
    def value(self) -> Any:
        """What the call returned, whichever field it came in."""
        if self.model_output is not None:
            return self.model_output
        return self.result if self.kv_cache_specs is None else self.kv_cache_specs
