from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Sampler as SdkSampler

from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.sampler import KNOWN, Sampler

TRACES = [f"{number:032x}" for number in (1, 1 << 62, 1 << 63, (1 << 64) - 1, 1 << 127)]
SPAN = "b7ad6b7169203331"


def headers(trace_id: str, flags: str) -> dict[str, str]:
    return {"traceparent": f"00-{trace_id}-{SPAN}-{flags}"}


@pytest.mark.parametrize("flags", ["00", "01", "03"])
def test_t16_by_default_the_parent_decides(flags: str) -> None:
    assert Sampler({}).decide(headers(TRACES[0], flags), "x") == (TRACES[0], SPAN, flags != "00")


@pytest.mark.parametrize("bad", [None, {}, {"traceparent": "nonsense"}, headers("0" * 32, "01")])
def test_no_parent_is_a_new_sampled_root(bad: dict[str, str] | None) -> None:
    first, second = Sampler({}).decide(bad, "x"), Sampler({}).decide(bad, "x")
    assert first.sampled
    assert first.parent_span_id is None
    assert first.trace_id != second.trace_id


def sdk(monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> SdkSampler:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return TracerProvider(shutdown_on_exit=False).sampler


@pytest.mark.parametrize("argument", ["", "0.0", "0.5", "1.0"])
@pytest.mark.parametrize("name", KNOWN)
def test_every_sampler_decides_as_the_sdk(name: str, argument: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_lite.tracing.context import parent_of
    from vllm_lite.tracing.sampler import _ask

    env = {"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": argument or "1.0"}
    ours, theirs = Sampler(env), sdk(monkeypatch, env)
    for trace_id in TRACES:
        for flags in ("00", "01"):
            parent = headers(trace_id, flags)
            assert ours.decide(parent, "x").sampled == _ask(theirs, parent_of(parent), trace_id, "x")
    decision = ours.decide(None, "x")
    assert decision.sampled == _ask(theirs, None, decision.trace_id, "x")


def test_disabled_samples_nothing_and_keeps_the_trace() -> None:
    sampler = Sampler({"OTEL_SDK_DISABLED": "True", "OTEL_TRACES_SAMPLER": "always_on"})
    assert sampler.disabled
    assert sampler.decide(headers(TRACES[1], "01"), "x") == (TRACES[1], SPAN, False)


@pytest.mark.parametrize(
    "env",
    [
        {"OTEL_TRACES_SAMPLER": "sometimes"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"},
        {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "half"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "nan"},
    ],
)
def test_what_the_sdk_would_only_warn_of_is_refused_by_name(env: dict[str, str]) -> None:
    with pytest.raises(VLLMValidationError, match=list(env)[-1]):
        Sampler(env)


def test_the_default_needs_no_sdk() -> None:
    code = (
        "import sys; from vllm_lite.tracing.sampler import Sampler; Sampler({}).decide(None, 'x'); "
        "print(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
