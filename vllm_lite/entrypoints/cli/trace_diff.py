"""`vllm-lite trace diff A B`: two runs, station by station.

Process: its own. Knows: options, the view. Does not know: how runs are compared.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import argparse

from vllm_lite.console.diff import Diff
from vllm_lite.console.theme import new_console
from vllm_lite.entrypoints.cli import views

EXAMPLES = """examples:
  vllm-lite trace diff runs/before runs/after
"""


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `diff` to the actions of `vllm-lite trace`."""
    parser = actions.add_parser(
        "diff",
        help="compare two runs, station by station",
        usage="vllm-lite trace diff A B",
        description="What came of each of two runs, and how long everything stayed at each station.\n"
        "Below 10 % of a difference neither counts as faster.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("a", metavar="A", help="a run directory")
    parser.add_argument("b", metavar="B", help="the one to compare with it")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Show it. Raises FileNotFoundError where one of them is no run."""
    new_console().print(Diff(views.open_run(args.a), views.open_run(args.b), (args.a, args.b)))
    return 0
