"""The one sampling decision of a request, made when it is added.

Process: front end. Knows: the sampler that OTEL_TRACES_SAMPLER names and the caller's headers. Does not know: recorders.
The default sampler needs no SDK (follow the parent's flag, else yes), so its 60 ms import is paid only for another one.
Mirrors: nothing in vLLM; the SDK decides there for each span.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from vllm_lite.config.checks import refuse
from vllm_lite.tracing.context import SpanContext, new_trace_id, parent_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler as SdkSampler

DEFAULT = "parentbased_always_on"
KNOWN = (DEFAULT, "parentbased_always_off", "parentbased_traceidratio", "always_on", "always_off", "traceidratio")


class Decision(NamedTuple):
    """`trace_id` is the parent's, or a new one; `parent_span_id` None makes the request a root."""

    trace_id: str
    parent_span_id: str | None
    sampled: bool


class Sampler:
    """Reads OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG and OTEL_SDK_DISABLED once.

    Raises VLLMValidationError for a sampler or argument that does not exist: the SDK would only warn and sample everything.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        env = os.environ if environ is None else environ
        self.disabled = env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        self._sdk = None if self.disabled else _sdk_sampler(env)

    def decide(self, trace_headers: Mapping[str, str] | None, name: str) -> Decision:
        """Whether the request that these headers came with is recorded, and in which trace. `name` is its span's."""
        parent = parent_of(trace_headers)
        trace_id = parent.trace_id if parent else new_trace_id()
        if self.disabled:
            sampled = False
        elif self._sdk is None:
            sampled = parent is None or parent.sampled
        else:
            sampled = _ask(self._sdk, parent, trace_id, name)
        return Decision(trace_id, parent.span_id if parent else None, sampled)


def _sdk_sampler(env: Mapping[str, str]) -> SdkSampler | None:
    """The SDK's sampler for these variables; None for the default one."""
    name = env.get("OTEL_TRACES_SAMPLER", "").strip().lower() or DEFAULT
    if name == DEFAULT:
        return None
    if name not in KNOWN:
        raise refuse("OTEL_TRACES_SAMPLER", name, f"one of {', '.join(KNOWN)}")
    from opentelemetry.sdk.trace import sampling

    root: SdkSampler = sampling.ALWAYS_ON if name.endswith("on") else sampling.ALWAYS_OFF
    if name.endswith("traceidratio"):
        argument = env.get("OTEL_TRACES_SAMPLER_ARG", "").strip() or "1.0"
        try:
            ratio = float(argument)
        except ValueError:
            ratio = -1.0
        if not 0.0 <= ratio <= 1.0:
            raise refuse("OTEL_TRACES_SAMPLER_ARG", argument, "a ratio from 0 to 1")
        root = sampling.TraceIdRatioBased(ratio)
    return sampling.ParentBased(root) if name.startswith("parentbased") else root


def _ask(sampler: SdkSampler, parent: SpanContext | None, trace_id: str, name: str) -> bool:
    """The SDK's verdict. It sees the caller's span as the parent, or an empty context, never the current one."""
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.sampling import Decision as Decided

    context = Context()
    if parent is not None:
        flags = trace.TraceFlags(int(parent.sampled))
        caller = trace.SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), is_remote=True, trace_flags=flags)
        context = trace.set_span_in_context(trace.NonRecordingSpan(caller), context)
    result = sampler.should_sample(context, int(trace_id, 16), name, trace.SpanKind.SERVER)
    return result.decision is Decided.RECORD_AND_SAMPLE
