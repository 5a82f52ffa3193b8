"""From records to journeys: the model, and what puts it together.

Process: readers. Knows: records. Does not know: spans.
Mirrors: nothing in vLLM.
"""

from vllm_lite.tracing.journey.load import load_run
from vllm_lite.tracing.journey.model import LATE, Bag, Letter, RequestJourney, Run, Share, Spell, Stay, StepJourney, Take
from vllm_lite.tracing.process import Process

__all__ = [
    "LATE", "Bag", "Letter", "Process", "RequestJourney", "Run", "Share", "Spell", "Stay", "StepJourney", "Take", "load_run",
]  # fmt: skip
