"""Whether one more request may join those that wait.

Process: front end. Knows: two limits. Does not know: requests. Refusing early, with an error that says "try again later", is
kinder than letting everybody wait longer.
Mirrors: vllm/v1/engine/admission_control.py
"""

from vllm_lite.config import SchedulerConfig
from vllm_lite.exceptions import MaxQueuedTokensError, QueueOverflowError


def check_admission(limits: SchedulerConfig, n: int, num_requests: int, num_queued_tokens: int) -> None:
    """Raise QueueOverflowError where `n` more requests would be too many; all of them are admitted, or none.

    The new request's own tokens do not count, so a prompt longer than the limit is served when nothing else waits.
    """
    most = limits.max_num_queued_reqs
    if most is not None and num_requests + n > most:
        remedy = "try again later" if n <= most else f"n must be <= {most}"
        raise QueueOverflowError(
            f"{num_requests} requests are in the engine and {n} more would exceed max_num_queued_reqs={most}; {remedy}"
        )
    most = limits.max_num_queued_tokens
    if most is not None and num_queued_tokens >= most:
        raise MaxQueuedTokensError(
            f"{num_queued_tokens} prompt tokens wait and max_num_queued_tokens is {most}; try again later"
        )
