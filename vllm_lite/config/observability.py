"""What is recorded of a request's journey, and where it goes.

Process: all. Knows: names and levels. Does not know: spans or spools.
Mirrors: vllm/config/observability.py
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_lite.config.checks import check_bool, check_int, check_path, check_text, refuse


@dataclass
class ObservabilityConfig:
    """Tracing settings.

    `trace_level`: 0 off, 1 requests, phases and steps, 2 also tokens and mailbox events, 3 also one child span per request and
    step. None means 1 where an endpoint is set, else 0. `trace_dir` is the run directory (made by whoever builds the engine);
    `trace_keep` keeps its spools after they were exported. `trace_steps` samples steps: "sampled" (those that hold a sampled
    request), "all", "off", or a ratio such as "0.1".
    """

    otlp_traces_endpoint: str | None = None
    trace_level: int | None = None
    trace_dir: str | None = None
    trace_keep: bool = False
    trace_steps: str = "sampled"

    def __post_init__(self) -> None:
        if self.trace_level is not None:
            check_int("trace_level", self.trace_level, 0, 3)
        if self.trace_dir is not None:
            check_path("trace_dir", self.trace_dir)
        if self.otlp_traces_endpoint is not None:
            check_text("otlp_traces_endpoint", self.otlp_traces_endpoint)
        check_bool("trace_keep", self.trace_keep)
        if self.trace_steps not in ("sampled", "all", "off"):
            try:
                in_range = isinstance(self.trace_steps, str) and 0.0 <= float(self.trace_steps) <= 1.0
            except ValueError:
                in_range = False
            if not in_range:
                raise refuse("trace_steps", self.trace_steps, "'sampled', 'all', 'off' or a ratio from 0 to 1, as a string")

    @property
    def level(self) -> int:
        """The level the run starts with; the control page can change it later."""
        if self.trace_level is not None:
            return self.trace_level
        return 1 if self.otlp_traces_endpoint else 0
