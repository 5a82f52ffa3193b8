"""Starts the exporter process, and lets it go.

Process: whoever builds the engine. Knows: how a child is started and told that its parent is gone. Does not know: spans.
Mirrors: nothing in vLLM.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.exporter.settings import GRPC, Settings, read_settings
from vllm_lite.tracing.sampler import Sampler
from vllm_lite.tracing.spans.environment import Limits, given_attributes

EXIT_MARGIN_S = 1.0
# glibc would give back what each look has freed, to have it cleared for the next one: a tenth of the exporter's time.
TUNABLES, KEEP_FREED = "GLIBC_TUNABLES", "glibc.malloc.trim_threshold=67108864:glibc.malloc.mmap_threshold=33554432"


class ExporterProcess:
    """The child that exports `run_dir`. It notices by itself when this process dies, and then flushes.

    Raises VLLMValidationError for an OTEL_* variable or an endpoint that it would refuse, before anything is started.
    """

    def __init__(self, run_dir: Path, endpoint: str | None, keep: bool = False) -> None:
        self.settings = check_environment(endpoint, os.environ)
        read_end, self._alive = os.pipe()
        command = [sys.executable, "-m", "vllm_lite.tracing.exporter", str(run_dir), "--death-fd", str(read_end)]
        command += ["--endpoint", endpoint] if endpoint else []
        command += ["--keep"] if keep else []
        asked = os.environ.get(TUNABLES)  # by the user: it comes last, and wins
        self._child = subprocess.Popen(
            command,
            env=os.environ | {TUNABLES: f"{KEEP_FREED}:{asked}" if asked else KEEP_FREED},
            stdin=subprocess.DEVNULL,
            pass_fds=(read_end,),
            start_new_session=True,  # Ctrl-C in the terminal ends the engine; the exporter sends what that leaves behind
        )
        os.close(read_end)

    def close(self) -> int:
        """Tell it that all is written and wait for its end, at most the flush budget and a second. Returns its exit status."""
        os.close(self._alive)
        try:
            return self._child.wait(self.settings.flush_s + EXIT_MARGIN_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait()


def check_environment(endpoint: str | None, environ: Mapping[str, str]) -> Settings:
    """Read every OTEL_* variable that tracing honours, so that a wrong one is refused at start and not at the first request.
    So is a missing package of OpenTelemetry's."""
    Limits.read(environ)
    given_attributes(environ)
    Sampler(environ)
    settings = read_settings(environ, endpoint)
    package = f"opentelemetry-exporter-otlp-proto-{'grpc' if settings.protocol == GRPC else 'http'}"
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        told = f"sending spans over {settings.protocol} needs the package {package}; install it, or trace without an endpoint"
        raise VLLMValidationError(told, parameter="otlp_traces_endpoint", value=settings.endpoint) from None
    return settings
