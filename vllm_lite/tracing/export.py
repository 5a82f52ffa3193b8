"""A recorded run in other tools' formats, or sent to a collector after all.

Process: `vllm-lite trace export`. Knows: where spans come from and which writer makes what. Does not know: options, formats.
Mirrors: nothing in vLLM.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.exporter.settings import Settings
from vllm_lite.tracing.journey import Run, load_run
from vllm_lite.tracing.spans import Span, run_spans
from vllm_lite.tracing.spans.environment import Limits
from vllm_lite.tracing.writers.jaeger import write_jaeger_json
from vllm_lite.tracing.writers.otlp_json import read_otlp_json, write_otlp_json
from vllm_lite.tracing.writers.perfetto import write_perfetto_json

# By the name of its option: what writes spans to a file and says how many there were.
FORMATS: dict[str, Callable[[Iterable[Span], Path, Mapping[str, str]], int]] = {
    "otlp": write_otlp_json,
    "jaeger": write_jaeger_json,
    "perfetto": write_perfetto_json,
}


class Sent(NamedTuple):
    """What came of sending: how many spans arrived, how many did not, and the last thing that went wrong."""

    arrived: int
    left: int
    answer: str


def read_spans(source: Run | Path, environ: Mapping[str, str]) -> Iterator[Span]:
    """The spans of a run, of its directory, or of a file of OTLP JSON lines (.gz too), within the limits that OTEL_* set.

    Raises FileNotFoundError where there is nothing, ValueError for a file of another kind.
    """
    limits = Limits.read(environ)
    if isinstance(source, Path) and source.is_dir():
        source = load_run(source)
    spans = read_otlp_json(source) if isinstance(source, Path) else run_spans(source)
    return map(limits.apply, spans) if limits.any else spans


def write_files(source: Run | Path, targets: Mapping[str, Path], environ: Mapping[str, str]) -> dict[str, int]:
    """Write `source` to each target, by the name of its format. Returns how many spans went into each.

    Raises VLLMValidationError for a target that is the source: it would be empty before it is read.
    """
    for name, path in targets.items():
        if isinstance(source, Path) and path.exists() and path.samefile(source):
            raise VLLMValidationError(f"--{name} is {path}, the file that is read; use another", parameter=name, value=path)
    return {name: FORMATS[name](read_spans(source, environ), path, environ) for name, path in targets.items()}


def send(source: Run | Path, settings: Settings, environ: Mapping[str, str]) -> Sent:
    """Send `source` to the collector that `settings` name, until a batch does not arrive: the exporter has tried it by then."""
    from vllm_lite.tracing.exporter.official import Collector

    collector, spans, arrived = Collector(settings, environ), read_spans(source, environ), 0
    while batch := list(itertools.islice(spans, settings.batch_spans)):
        if not collector.export(batch):
            return Sent(arrived, len(batch) + sum(1 for _ in spans), (collector.errors or ["no answer"])[-1])
        arrived += len(batch)
    return Sent(arrived, 0, "")
