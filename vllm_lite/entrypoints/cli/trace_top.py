"""`vllm-lite trace top RUN`: the mailroom of an engine that runs, while it runs.

Process: its own. Knows: options, live runs, the view. Does not know: engines. It rests at least four times as long as it took
to read and draw, so that it never takes more than a fifth of a core from the engine.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import argparse
from time import monotonic_ns, sleep

from rich.console import Console
from rich.live import Live

from vllm_lite.console.theme import new_console
from vllm_lite.console.top import Top
from vllm_lite.entrypoints.cli.session import INTERRUPTED
from vllm_lite.tracing.live import LiveRun, Tail, find_live_run, live_runs, not_one, switched
from vllm_lite.tracing.process import is_alive

EXAMPLES = """examples:
  vllm-lite trace top         the only engine that runs here
  vllm-lite trace top 4711    by its process id, or its run directory
"""
LEVEL = 2  # single letters
FRAME_S, REST = 0.1, 4
LOOK_S = 1.0  # where the output is no terminal


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `top` to the actions of `vllm-lite trace`."""
    parser = actions.add_parser(
        "top",
        help="watch the mailroom of a running engine",
        usage="vllm-lite trace top [RUN]",
        description="Draw the last bags of a running engine, ten times a second at most, until\n"
        "Ctrl-C. Meanwhile it is traced at level 2 at least; a request from before that\n"
        "has no column. One frame where the output is no terminal.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("live", metavar="RUN", nargs="?", help="process id or run directory; absent: the only one")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Watch it. Raises VLLMValidationError where there is no such engine, or several and none was named."""
    console = new_console()
    live = find_live_run(args.live) if args.live is not None else _only()
    top, tail = Top(f"engine {live.pid}"), Tail(live.path)
    with switched(live.path, max(live.level, LEVEL)):
        code = _watch(console, live, top, tail) if console.is_terminal else _look(top, tail)
    console.print(top)
    return code


def _only() -> LiveRun:
    runs = live_runs()
    if len(runs) != 1:
        raise not_one(runs)
    return runs[0]


def _watch(console: Console, live: LiveRun, top: Top, tail: Tail) -> int:
    """Until the engine ends or Ctrl-C comes."""
    try:
        with Live(top, console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as screen:
            while is_alive(live.pid):
                began = monotonic_ns()
                top.look(tail.poll(), began)
                screen.refresh()
                sleep(max(FRAME_S, REST * (monotonic_ns() - began) / 1e9))
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _look(top: Top, tail: Tail) -> int:
    sleep(LOOK_S)
    top.look(tail.poll(), monotonic_ns())
    return 0
