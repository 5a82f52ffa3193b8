"""How much work one step may hold.

Process: all. Knows: limits. Does not know: requests.
Mirrors: vllm/config/scheduler.py
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_lite.config.checks import check_bool, check_choice, check_int, refuse

POLICIES = ("fcfs", "priority")


@dataclass
class SchedulerConfig:
    """Limits of a step and of the queues.

    `async_scheduling` None means: on where the executor's `execute_model` returns at once, off where it runs inline.
    `max_num_queued_reqs` and `max_num_queued_tokens` are admission control; None admits everything.
    """

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: str = "fcfs"
    async_scheduling: bool | None = None
    scheduler_reserve_full_isl: bool = True
    stream_interval: int = 1
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None

    def __post_init__(self) -> None:
        check_int("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        check_int("max_num_seqs", self.max_num_seqs, 1)
        check_int("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        check_int("stream_interval", self.stream_interval, 1)
        check_bool("enable_chunked_prefill", self.enable_chunked_prefill)
        check_bool("scheduler_reserve_full_isl", self.scheduler_reserve_full_isl)
        if self.async_scheduling is not None:
            check_bool("async_scheduling", self.async_scheduling)
        check_choice("policy", self.policy, POLICIES)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise refuse(
                "max_num_batched_tokens", self.max_num_batched_tokens, f">= max_num_seqs, which is {self.max_num_seqs}"
            )
        for field in ("max_num_queued_reqs", "max_num_queued_tokens"):
            value = getattr(self, field)
            if value is not None:
                check_int(field, value, 1)
