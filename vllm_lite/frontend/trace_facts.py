"""What records say of a request beside its times: what it asked for, and how it ended.

Process: front end. Knows: parameters, errors, conventions' names. Does not know: recorders.
Mirrors: vllm/v1/engine/output_processor.py (do_tracing)
"""

import asyncio

from vllm_lite.config.checks import INT64_MAX, INT64_MIN
from vllm_lite.exceptions import EngineDeadError, QueueOverflowError, VLLMClientError
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams
from vllm_lite.tracing.recorder import writable
from vllm_lite.tracing.records import AttributeValue
from vllm_lite.tracing.request_trace import RequestTrace


def ending(trace: RequestTrace, error: BaseException | None) -> tuple[str, str | None, str | None]:
    """Outcome, error type and message."""
    reasons = set(trace.finish_reasons)
    if error is None:
        if "error" in reasons:
            return "error", "EngineGenerateError", trace.error_message
        return ("aborted", None, None) if reasons <= {"abort"} else ("finished", None, None)
    if isinstance(error, EngineDeadError):
        return "engine_dead", "engine_dead", str(error)
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "aborted", None, None
    name = type(error).__name__
    if isinstance(error, QueueOverflowError):
        return "rejected", name, str(error)
    return ("invalid" if isinstance(error, VLLMClientError) else "error"), name, str(error)


def asked(params: SamplingParams | PoolingParams) -> dict[str, AttributeValue]:
    """gen_ai.request.* of the parameters. They are not checked yet, so whatever has a wrong type is left out."""
    if not isinstance(params, SamplingParams):
        return {}
    asked = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": None if params.top_k == 0 else params.top_k,
        "seed": params.seed,
        "frequency_penalty": None if params.frequency_penalty == 0 else params.frequency_penalty,
        "presence_penalty": None if params.presence_penalty == 0 else params.presence_penalty,
        "stop_sequences": None if params.stop == [] else params.stop,
        "choice.count": None if params.n == 1 else params.n,
        "stream": params.output_kind is not RequestOutputKind.FINAL_ONLY,
    }
    written = {f"gen_ai.request.{name}": _attribute(value) for name, value in asked.items()}
    return {name: value for name, value in written.items() if value is not None}


def _attribute(value: object) -> AttributeValue | None:
    """The value as a record holds it; None for what it cannot hold, which the checks refuse later on."""
    if isinstance(value, list):
        return [writable(text) for text in value] if all(isinstance(text, str) for text in value) else None
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if INT64_MIN <= value <= INT64_MAX else None
    return float(value) if isinstance(value, float) else None
