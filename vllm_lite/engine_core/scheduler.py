"""Who computes how many tokens in the next step, and what the last step's result means for each request.

Process: engine core, main thread. Knows: the queues, the token budget, the KV cache manager. Does not know: models, sockets,
tracing. There is no prefill or decode phase: a request is given tokens until its computed ones catch up with its known ones.
Mirrors: vllm/v1/core/sched/scheduler.py, vllm/v1/core/sched/utils.py
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from vllm_lite.config import VllmConfig
from vllm_lite.engine_core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm_lite.engine_core.request import NEVER, Request, RequestStatus
from vllm_lite.engine_core.request_queue import RequestQueue
from vllm_lite.wire.kv_cache_interface import KVCacheConfig
from vllm_lite.wire.messages import EngineCoreEventType, EngineCoreOutput, EngineCoreOutputs
from vllm_lite.wire.stats import PrefillStats, SchedulerStats
from vllm_lite.wire.step import CachedRequestData, ModelRunnerOutput, NewRequestData, SchedulerOutput


class PauseState(enum.IntEnum):
    """What a paused scheduler still does: PAUSED_NEW finishes what has begun, PAUSED_ALL grants nothing to anybody."""

    UNPAUSED = 0
    PAUSED_NEW = 1
    PAUSED_ALL = 2


class Scheduler:
    """Running requests are served first, then waiting ones are admitted while budget, slots and blocks last.

    `running` is in order of admission. A request's `num_computed_tokens` moves when it is scheduled, not when its result comes,
    so that the next step can be planned from it. Only full results change a request: a chunk of a prompt yields no output.

    With async scheduling a step may be planned while the one before it runs. A token that is not known yet is counted as a
    placeholder; the worker, which takes steps in order, knows it in time. Whoever was preempted with such a token on its way
    is admitted again once it has come.
    """

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
        self._config = config = vllm_config.scheduler_config
        self.async_scheduling = bool(config.async_scheduling)
        assert vllm_config.model_config.max_model_len is not None
        self.max_model_len = vllm_config.model_config.max_model_len
        self.by_priority = config.policy == "priority"
        self.kv_cache_manager = KVCacheManager(kv_cache_config, vllm_config.cache_config.enable_prefix_caching)
        self.requests: dict[str, Request] = {}
        self.waiting = RequestQueue(self.by_priority)
        self.running: list[Request] = []
        self._finished_req_ids: list[str] = []  # since the last schedule(); the worker drops their state
        self._preempted_req_ids: list[str] = []
        parallel = vllm_config.parallel_config
        self._include_finished_set = parallel.data_parallel_size > 1 and not parallel.data_parallel_external_lb
        self._finished_by_client: dict[int, set[str]] = {}  # since the last bags; for whoever balances requests over engines
        self._step = -1
        self.stale_tokens: list[tuple[str, int]] = []  # of the last result: made for requests that were gone by then
        self.pause_state = PauseState.UNPAUSED  # requests may come and go in any state

    # ---- requests come and go ------------------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Let `request` wait, or the session that it is a later part of. Raises ValueError where one of its id is here already,
        or where no session waits for this part."""
        if request.continues:
            session = self.requests.get(request.request_id)
            if session is None or session.status != RequestStatus.WAITING_FOR_STREAMING_REQ:
                raise ValueError(f"no session {request.request_id} waits for a part")
            if session.num_tokens - 1 + request.num_tokens >= self.max_model_len:
                raise ValueError(f"session {request.request_id} would be longer than {self.max_model_len - 1} tokens")
            session.take_part(request, self.kv_cache_manager.block_size)
            request = session
        elif request.request_id in self.requests:
            raise ValueError(f"request {request.request_id} is here already")
        self.requests[request.request_id] = request
        self.waiting.add_request(request)
        request.record_event(EngineCoreEventType.QUEUED)

    def finish_requests(self, request_ids: Iterable[str], finished_status: RequestStatus) -> list[Request]:
        """End requests from outside, in whatever state; returns those that were still here."""
        finished = {request_id: self.requests[request_id] for request_id in request_ids if request_id in self.requests}
        if not finished:
            return []
        if any(request.status == RequestStatus.RUNNING for request in finished.values()):
            self.running = [request for request in self.running if request.request_id not in finished]
        self.waiting.remove_requests(finished)
        for request in finished.values():
            request.status = finished_status
            self._free_request(request)
        return list(finished.values())

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached blocks; False while running requests hold some, unless they may be preempted and recomputed."""
        if reset_running_requests:
            while self.running:
                self._preempt(self.running.pop())
        return self.kv_cache_manager.reset_prefix_cache()

    def has_requests(self) -> bool:
        """True while there is something to schedule, be it only the news of finished requests for the worker."""
        return bool(self._finished_req_ids) or self.get_num_unfinished_requests() > 0

    def get_num_unfinished_requests(self) -> int:
        """Requests that run or wait; those that a pause holds back and sessions without a part are not counted."""
        if self.pause_state == PauseState.UNPAUSED:
            return len(self.running) + len(self.waiting)
        if self.pause_state == PauseState.PAUSED_ALL:
            return 0
        return len(self.running) + sum(request.status == RequestStatus.PREEMPTED for request in self.waiting)

    # ---- the next step -------------------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Plan one step. The plan may be empty, and then only carries finished requests to the worker."""
        self._step += 1
        budget = 0 if self.pause_state == PauseState.PAUSED_ALL else self._config.max_num_batched_tokens
        plan = _StepPlan(budget, self._prefill_limit())
        self._schedule_running(plan)
        if not plan.preempted_any:
            self._schedule_waiting(plan)
        output = SchedulerOutput(
            self._step,
            [self._new_request_data(request) for request in plan.admitted],
            CachedRequestData(
                [request.request_id for request in plan.running],
                [plan.new_block_ids.get(request.request_id) for request in plan.running],
                [request.num_computed_tokens for request in plan.running],
                [r.num_tokens + r.num_output_placeholders - r.num_prompt_tokens for r in plan.running],
            ),
            plan.num_scheduled_tokens,
            budget - plan.token_budget,
            self._finished_req_ids,
            self._preempted_req_ids,
        )
        ahead = self.async_scheduling
        for request in (*plan.running, *plan.admitted):
            request.num_computed_tokens += plan.num_scheduled_tokens[request.request_id]
            if ahead and request.pooling_params is None:
                known = request.num_tokens + request.num_output_placeholders
                if request.num_computed_tokens == known:  # the step adds one more
                    request.num_output_placeholders += 1
        self._finished_req_ids, self._preempted_req_ids = [], []  # new lists: the plan keeps the old ones
        return output

    def _prefill_limit(self) -> int:
        """The most tokens one request gets in this step; a threshold only holds while there is somebody to hold it for."""
        if self._config.long_prefill_token_threshold and len(self.running) + len(self.waiting) > 1:
            return self._config.long_prefill_token_threshold
        return self._config.max_num_batched_tokens

    def _schedule_running(self, plan: _StepPlan) -> None:
        running, allocate_slots = self.running, self.kv_cache_manager.allocate_slots
        nothing_new = self.kv_cache_manager.empty_kv_cache_blocks
        index = 0
        while index < len(running) and plan.token_budget > 0:
            request = running[index]
            missing = request.num_tokens + request.num_output_placeholders - request.num_computed_tokens
            if self.async_scheduling and (missing == 0 or self._ends_anyway(request)):
                index += 1
                continue
            count = min(missing, plan.prefill_limit, plan.token_budget)
            blocks = allocate_slots(request, count)
            if blocks is None:
                blocks = self._make_room(request, count, plan)
                if blocks is None:
                    continue  # it went itself, and another request stands at its index
                index = running.index(request)
            if blocks is not nothing_new:
                plan.new_block_ids[request.request_id] = blocks.get_block_ids()
            plan.running.append(request)
            plan.num_scheduled_tokens[request.request_id] = count
            plan.token_budget -= count
            index += 1

    def _ends_anyway(self, request: Request) -> bool:
        """True where a token on its way reaches a length limit, so that none may follow it."""
        if not request.num_output_placeholders:
            return False
        known = request.num_tokens + request.num_output_placeholders
        return known >= self.max_model_len or known - request.num_prompt_tokens >= request.max_tokens

    def _make_room(self, request: Request, count: int, plan: _StepPlan) -> KVCacheBlocks | None:
        """Preempt until `request` fits. None where it had to go itself."""
        blocks = None
        while blocks is None:
            victim = max(self.running, key=lambda r: r.sort_key) if self.by_priority else self.running[-1]
            self.running.remove(victim)
            plan.preempted_any = True
            if victim.request_id in plan.num_scheduled_tokens:
                self._take_back(victim, plan)
            self._preempt(victim)
            if victim is request:
                return None
            blocks = self.kv_cache_manager.allocate_slots(request, count)
        return blocks

    def _take_back(self, victim: Request, plan: _StepPlan) -> None:
        """Undo what this step had already granted to `victim`; blocks it was to fill must not be found by anyone."""
        plan.token_budget += plan.num_scheduled_tokens.pop(victim.request_id)
        plan.new_block_ids.pop(victim.request_id, None)
        plan.running.remove(victim)
        self.kv_cache_manager.forget_uncomputed(victim, victim.num_computed_tokens)

    def _preempt(self, request: Request) -> None:
        """Take a request's blocks (already out of `running`) and let it wait at the front; its answer so far is kept."""
        self.kv_cache_manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.reset_computed_tokens()
        request.record_event(EngineCoreEventType.PREEMPTED)
        self.waiting.prepend_request(request)
        self._preempted_req_ids.append(request.request_id)

    def _schedule_waiting(self, plan: _StepPlan) -> None:
        manager, config = self.kv_cache_manager, self._config
        while plan.token_budget > 0 and len(self.running) < config.max_num_seqs:
            request = self._next_waiting()
            if request is None or request.num_output_placeholders:
                return
            computed_blocks, num_computed_tokens = manager.get_computed_blocks(request)
            count = min(request.num_tokens - num_computed_tokens, plan.prefill_limit)
            if not config.enable_chunked_prefill and count > plan.token_budget:
                return
            count = min(count, plan.token_budget)
            if manager.allocate_slots(request, count, computed_blocks, config.scheduler_reserve_full_isl) is None:
                return
            self._stop_waiting(request)
            self._admit(request, num_computed_tokens)
            plan.admitted.append(request)
            plan.num_scheduled_tokens[request.request_id] = count
            plan.token_budget -= count

    def _next_waiting(self) -> Request | None:
        """Who is to be admitted next; while paused only one that had begun and was preempted."""
        if self.pause_state == PauseState.UNPAUSED:
            return self.waiting.peek_request() if self.waiting else None
        return next((request for request in self.waiting if request.status == RequestStatus.PREEMPTED), None)

    def _stop_waiting(self, request: Request) -> None:
        if self.waiting.peek_request() is request:
            self.waiting.pop_request()
        else:
            self.waiting.remove_requests((request.request_id,))

    def _admit(self, request: Request, num_computed_tokens: int) -> None:
        if self.kv_cache_manager.enable_caching and not request.skip_reading_prefix_cache:
            self.kv_cache_manager.record_look_up(request, num_computed_tokens)
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = num_computed_tokens
            request.prefill_stats = PrefillStats(request.num_prompt_tokens, num_computed_tokens)
        request.status = RequestStatus.RUNNING
        request.first_step = self._step
        request.num_computed_tokens = num_computed_tokens
        request.record_event(EngineCoreEventType.SCHEDULED)
        self.running.append(request)

    def _new_request_data(self, request: Request) -> NewRequestData:
        return NewRequestData(
            request.request_id,
            request.all_token_ids.copy(),
            request.num_prompt_tokens,
            request.sampling_params,
            request.pooling_params,
            self.kv_cache_manager.get_block_ids(request.request_id),
            request.num_computed_tokens,
        )

    # ---- its result ----------------------------------------------------------------------------------------------------------

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Give each request its new tokens, end those that are done; one bag for each client, by its index.

        A request that was ended from outside while the step ran is skipped; one that was preempted still gets its token.
        Statistics ride in the first bag, or in one of their own for client 0.
        """
        requests, any_ended, step = self.requests, False, scheduler_output.step
        for request_id, chunk in model_runner_output.prompt_logprobs.items():
            request = requests.get(request_id)
            if request is not None and request.status == RequestStatus.RUNNING and request.first_step <= step:
                request.add_prompt_logprobs(chunk)
        outputs: defaultdict[int, list[EngineCoreOutput]] = defaultdict(list)
        self.stale_tokens = stale = []
        for row, request_id in enumerate(model_runner_output.req_ids):
            request = requests.get(request_id)
            if request is None or request.first_step > step:  # gone, or another of the same name, or computed anew
                stale.append((request_id, len(model_runner_output.sampled_token_ids[row])))
                continue
            output = self._update_request(request, row, scheduler_output, model_runner_output)
            if output is None:
                continue
            if request.is_finished():
                any_ended = True
                self._end(request, output)
            outputs[request.client_index].append(output)
        if any_ended:
            self.running = [request for request in self.running if request.status == RequestStatus.RUNNING]
        return self._make_bags(outputs, len(scheduler_output.preempted_req_ids))

    def _update_request(
        self, request: Request, row: int, scheduler_output: SchedulerOutput, result: ModelRunnerOutput
    ) -> EngineCoreOutput | None:
        """One request's row for the bag; None for a chunk that did not reach the end of its prompt."""
        token_ids = result.sampled_token_ids[row]
        output = EngineCoreOutput(request.request_id, token_ids)
        if result.errors and request.request_id in result.errors:
            self._fail(request, result.errors[request.request_id], scheduler_output, output)
        elif token_ids:
            if self.async_scheduling:
                request.num_output_placeholders -= 1
            output.new_token_ids = self._append_tokens(request, token_ids)
            if result.logprobs is not None:
                output.new_logprobs = result.logprobs[row]
        elif result.pooler_output is not None and result.pooler_output[row] is not None:
            output.pooling_output = result.pooler_output[row]
            request.status = RequestStatus.FINISHED_STOPPED
        else:
            return None
        if request.events:  # the first output always has some
            output.events, request.events = request.events, []
            output.prefill_stats, request.prefill_stats = request.prefill_stats, None
            output.new_prompt_logprobs_tensors = request.take_prompt_logprobs()
        return output

    def _append_tokens(self, request: Request, token_ids: list[int]) -> list[int]:
        """Append tokens until one ends the answer; returns those that count. (An executor of one's own may make several.)"""
        for taken, token_id in enumerate(token_ids, 1):
            request.append_output_token_ids(token_id)
            if check_stop(request, self.max_model_len):
                return token_ids[:taken]
        return token_ids

    def _fail(self, request: Request, error: str, scheduler_output: SchedulerOutput, output: EngineCoreOutput) -> None:
        """End a request that failed on its own; whatever this step was to compute for it is not to be trusted."""
        request.status = RequestStatus.FINISHED_ERROR
        output.new_token_ids = []
        output.error = str(error).encode(errors="backslashreplace").decode()  # an executor's own words, and they must travel
        self.kv_cache_manager.forget_uncomputed(request, scheduler_output.num_computed_tokens(request.request_id))

    def _end(self, request: Request, output: EngineCoreOutput) -> None:
        """The answer has ended with this row of the bag."""
        output.finish_reason = request.get_finished_reason()
        output.stop_reason = request.stop_reason
        if request.num_preemptions:  # it may wait, with its last token on its way when it was preempted
            self.waiting.remove_requests((request.request_id,))
        if request.resumable and request.status != RequestStatus.FINISHED_ERROR:
            self._park(request)
        else:
            self._free_request(request)

    def _park(self, session: Request) -> None:
        """The answer to one part has ended. Until the next comes the session has no blocks (the prefix cache keeps what it can)
        and no row in the worker; a step that has begun may still bring it a token, which nobody wants."""
        self.kv_cache_manager.free(session)
        self._finished_req_ids.append(session.request_id)
        session.status = RequestStatus.WAITING_FOR_STREAMING_REQ
        session.first_step = NEVER
        session.num_output_placeholders = 0

    def _free_request(self, request: Request) -> None:
        self.kv_cache_manager.free(request)
        self._finished_req_ids.append(request.request_id)
        if self._include_finished_set:
            self._finished_by_client.setdefault(request.client_index, set()).add(request.request_id)
        del self.requests[request.request_id]

    def _make_bags(self, outputs: dict[int, list[EngineCoreOutput]], num_preempted: int) -> dict[int, EngineCoreOutputs]:
        bags = {client: EngineCoreOutputs(outputs=rows) for client, rows in outputs.items()}
        if self._finished_by_client:
            for client, request_ids in self._finished_by_client.items():
                bags.setdefault(client, EngineCoreOutputs()).finished_requests = request_ids
            self._finished_by_client = {}
        if not bags:
            bags[0] = EngineCoreOutputs()
        next(iter(bags.values())).scheduler_stats = SchedulerStats(
            len(self.running),
            len(self.waiting),
            self.kv_cache_manager.usage,
            self.kv_cache_manager.make_prefix_cache_stats(),
            self._step,
            num_preempted_reqs=num_preempted,
        )
        return bags


@dataclass(slots=True)
class _StepPlan:
    """One step in the making."""

    token_budget: int
    prefill_limit: int
    running: list[Request] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    new_block_ids: dict[str, list[list[int]]] = field(default_factory=dict)
    preempted_any: bool = False


def check_stop(request: Request, max_model_len: int) -> bool:
    """End `request` if its newest token says so: end of sequence, then a stop token, then a length limit. True where it did.

    `min_tokens` is the sampler's: it never lets a stop token through before.
    """
    params = request.sampling_params
    assert params is not None
    last_token_id = request.all_token_ids[-1]
    if last_token_id == params.eos_token_id and not params.ignore_eos:
        request.status = RequestStatus.FINISHED_STOPPED
    elif params.stop_token_ids and last_token_id in params.stop_token_ids:
        request.status = RequestStatus.FINISHED_STOPPED
        request.stop_reason = last_token_id
    elif request.num_tokens >= max_model_len or request.num_output_tokens >= request.max_tokens:
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
    return request.is_finished()
