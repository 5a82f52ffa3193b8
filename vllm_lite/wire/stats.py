"""Figures that ride with a bag.

Process: made in the engine core, read in the front end. Knows: counts. Does not know: loggers.
Mirrors: vllm/v1/metrics/stats.py (the engine core's half)
"""

import msgspec


class PrefixCacheStats(msgspec.Struct, array_like=True, gc=False):
    """Prefix cache look-ups since the last report: requests, tokens asked for, tokens found."""

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0


class SchedulerStats(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """The scheduler's state after a step. `kv_cache_usage` is the used share of the blocks, 0 to 1."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_stats: PrefixCacheStats | None = None
    step_counter: int = 0
    current_wave: int = 0
    num_preempted_reqs: int = 0
    num_skipped_waiting_reqs: int = 0


class PrefillStats(msgspec.Struct, array_like=True, gc=False):
    """Sent once, on a request's first output: prompt tokens and how many of them the prefix cache held."""

    num_prompt_tokens: int
    num_cached_tokens: int
