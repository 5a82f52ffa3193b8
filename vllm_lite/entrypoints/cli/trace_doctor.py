"""`vllm-lite trace doctor`: does a span arrive at the collector, and if not, what is there to change?

Process: its own. Knows: options, how a diagnosis is printed. Does not know: networks.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import argparse

from rich.text import Text

from vllm_lite.console.theme import ERROR, STRONG, Screen, new_console
from vllm_lite.tracing.exporter.doctor import examine

EXAMPLES = """examples:
  vllm-lite trace doctor --otlp-traces-endpoint http://localhost:4317
  vllm-lite trace doctor             the collector that OTEL_* variables name
"""


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `doctor` to the actions of `vllm-lite trace`."""
    parser = actions.add_parser(
        "doctor",
        help="send one span to a collector and say what came of it",
        usage="vllm-lite trace doctor [options]",
        description="Send one span to a collector, say what came of it, and what to change where it\n"
        "did not arrive (exit code 1). OTEL_* variables count as they do for an engine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--otlp-traces-endpoint", metavar="URL", help="the collector; that of OTEL_* variables where absent")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Examine it and print each look; 1 where the span did not arrive. Raises VLLMValidationError for a refused setting."""
    found, console = examine(args.otlp_traces_endpoint), new_console()
    screen = Screen.of(console)
    console.print(screen.title("doctor", screen.printable(found.endpoint), found.protocol))
    for well, sentence in found.looks:
        line = Text("well  " if well else "ill   ", STRONG if well else ERROR)
        console.print(line.append(screen.printable(sentence), "not bold"), soft_wrap=True)
    for remedy in found.remedies:
        console.print(Text.assemble(("do    ", STRONG), screen.printable(remedy)), soft_wrap=True)
    return 0 if found.arrived else 1
