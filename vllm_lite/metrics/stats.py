"""What one bag says of requests and their times.

Process: front end. Knows: rows, events, two clocks: the wall for what the caller feels, the engine core's monotonic clock for
what happened there. Does not know: loggers. A time is computed only where both its ends were told; else it is None or left out.
Mirrors: vllm/v1/metrics/stats.py (the front end's half)
"""

import time
from dataclasses import dataclass, field

from vllm_lite.wire.messages import EngineCoreEventType, EngineCoreOutput, FinishReason
from vllm_lite.wire.stats import SchedulerStats

__all__ = ["FinishedRequestStats", "IterationStats", "RequestStateStats", "SchedulerStats"]


@dataclass(slots=True)
class RequestStateStats:
    """One request's figures so far. `arrival_time` is the wall clock, `..._ts` the engine core's; 0.0 is "not yet". Seconds."""

    arrival_time: float = 0.0
    num_generation_tokens: int = 0
    num_preemptions: int = 0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0  # the first time only
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0


@dataclass(slots=True)
class FinishedRequestStats:
    """One ended request. Times in seconds; None where one of their ends was never told."""

    finish_reason: FinishReason
    request_id: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generation_tokens: int
    max_tokens_param: int | None
    num_preemptions: int
    e2e_latency: float | None
    queued_time: float | None
    prefill_time: float | None
    inference_time: float | None
    decode_time: float | None

    @property
    def num_computed_tokens(self) -> int:
        """Prompt tokens that the prefix cache did not hold."""
        return self.num_prompt_tokens - self.num_cached_tokens

    @property
    def mean_time_per_output_token(self) -> float | None:
        """Between two tokens; None where there are no two."""
        count = self.num_generation_tokens - 1
        return None if self.decode_time is None or count < 1 else self.decode_time / count


@dataclass(slots=True)
class IterationStats:
    """What one bag brought; `iteration_timestamp` is the wall clock when it was opened."""

    iteration_timestamp: float = field(default_factory=time.time)
    num_generation_tokens: int = 0
    num_prompt_tokens: int = 0
    num_cached_prompt_tokens: int = 0
    num_preempted_reqs: int = 0
    finished_requests: list[FinishedRequestStats] = field(default_factory=list)
    max_num_generation_tokens_iter: list[int] = field(default_factory=list)  # the longest answer of each ended request
    n_params_iter: list[int] = field(default_factory=list)
    time_to_first_tokens_iter: list[float] = field(default_factory=list)
    inter_token_latencies_iter: list[float] = field(default_factory=list)

    def update_from_output(
        self, output: EngineCoreOutput, engine_core_timestamp: float, stats: RequestStateStats, num_prompt_tokens: int | None
    ) -> None:
        """Count one row. `num_prompt_tokens` is given with a request's first row alone."""
        if output.events is not None:
            self._note_events(output, stats)
        if num_prompt_tokens is not None:
            self.num_prompt_tokens += num_prompt_tokens
            if output.prefill_stats is not None:
                self.num_cached_prompt_tokens += output.prefill_stats.num_cached_tokens
        count = len(output.new_token_ids)
        if not count:
            return
        self.num_generation_tokens += count
        stats.num_generation_tokens += count
        if stats.first_token_ts:
            self.inter_token_latencies_iter.append(engine_core_timestamp - stats.last_token_ts)
        else:
            stats.first_token_ts = engine_core_timestamp
            if stats.arrival_time:
                self.time_to_first_tokens_iter.append(self.iteration_timestamp - stats.arrival_time)
        stats.last_token_ts = engine_core_timestamp

    def update_from_finished_request(
        self,
        finish_reason: FinishReason,
        request_id: str,
        stats: RequestStateStats,
        *,
        num_prompt_tokens: int,
        max_tokens_param: int | None,
        num_cached_tokens: int = 0,
    ) -> None:
        """Count a request that ended with this bag."""
        self.finished_requests.append(
            FinishedRequestStats(
                finish_reason,
                request_id,
                num_prompt_tokens,
                num_cached_tokens,
                stats.num_generation_tokens,
                max_tokens_param,
                stats.num_preemptions,
                e2e_latency=interval(stats.arrival_time, self.iteration_timestamp),
                queued_time=interval(stats.queued_ts, stats.scheduled_ts),
                prefill_time=interval(stats.scheduled_ts, stats.first_token_ts),
                inference_time=interval(stats.scheduled_ts, stats.last_token_ts),
                decode_time=interval(stats.first_token_ts, stats.last_token_ts),
            )
        )

    def _note_events(self, output: EngineCoreOutput, stats: RequestStateStats) -> None:
        for event in output.events or ():
            if event.type is EngineCoreEventType.QUEUED:
                stats.queued_ts = stats.queued_ts or event.timestamp
            elif event.type is EngineCoreEventType.SCHEDULED:
                stats.scheduled_ts = stats.scheduled_ts or event.timestamp
            else:
                stats.num_preemptions += 1
                self.num_preempted_reqs += 1


def interval(start: float, end: float) -> float | None:
    """Seconds between two timestamps, None where either was never set."""
    return end - start if start and end else None
