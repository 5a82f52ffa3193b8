"""What all commands of `vllm-lite` have in common on the command line.

Process: whichever parses. Knows: argparse. Does not know: which commands there are.
Mirrors: nothing in vLLM.
"""

import argparse
from collections.abc import Callable
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(commands: Commands, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    """The parser of a command that `run` runs. `text` says in four paragraphs: its line in the list of commands, beginning with
    its name and a colon; its usage; what it does; examples."""
    name_and_summary, usage, description, examples = text.strip("\n").split("\n\n")
    name, summary = name_and_summary.split(": ", 1)
    parser = commands.add_parser(
        name,
        usage=usage,
        help=summary,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, parser=parser)
    return parser
