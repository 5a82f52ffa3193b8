"""`vllm-lite trace attach RUN`: traces an engine that runs already, for a while, and follows its requests.

Process: its own. Knows: options, live runs, how a request ended. Does not know: engines.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import argparse
from time import monotonic_ns, sleep

from rich.console import Console
from rich.text import Text

from vllm_lite.config.checks import check_int, refuse
from vllm_lite.console.figures import count, span
from vllm_lite.console.passage import first_token
from vllm_lite.console.theme import DIM, STRONG, Screen, new_console
from vllm_lite.console.timeline import ending
from vllm_lite.entrypoints.cli import views
from vllm_lite.entrypoints.cli.session import INTERRUPTED
from vllm_lite.tracing.journey import RequestJourney
from vllm_lite.tracing.live import LiveRun, Tail, find_live_run, live_runs, switched
from vllm_lite.tracing.process import is_alive

EXAMPLES = """examples:
  vllm-lite trace attach                        which engines run here
  vllm-lite trace attach 4711                   until Ctrl-C
  vllm-lite trace attach 4711 --trace-count 20  the next 20 requests
  vllm-lite trace attach RUN --level 1          by its run directory
"""
LEVEL = 3
POLL_S = 0.1


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `attach` to the actions of `vllm-lite trace`."""
    parser = actions.add_parser(
        "attach",
        help="trace an engine that runs already",
        usage="vllm-lite trace attach [RUN] [options]",
        description="Trace the requests that come to a running engine from now on, and print each\n"
        "that ends. Ctrl-C, or the last request of --trace-count, puts the level back.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("live", metavar="RUN", nargs="?", help="process id or run directory; absent: list what runs")
    parser.add_argument("--level", type=int, metavar="N", help=f"the trace level meanwhile, 1 to 3 ({LEVEL})")
    parser.add_argument("--trace-count", type=int, metavar="N", help="trace so many requests and end")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """List or follow. Raises VLLMValidationError where there is no such engine."""
    console = new_console()
    for option, value, most in (("--level", args.level, 3), ("--trace-count", args.trace_count, None)):
        if value is not None:
            check_int(option, value, 1, most)
            if args.live is None:
                raise refuse(option, value, "absent without RUN, the engine to trace")
    if args.live is None:
        _list(console)
        return 0
    return _follow(console, find_live_run(args.live), args.level or LEVEL, args.trace_count)


def _list(console: Console) -> None:
    runs, screen = live_runs(), Screen.of(console)
    console.print(screen.title("engines that run", str(len(runs))))
    if runs:
        console.print(Text(f"{'pid':>9}{'level':>7}  run directory", DIM))
    for live in runs:
        console.print(Text.assemble((f"{live.pid:>9}", STRONG), f"{live.level:>7}  {live.path}"), soft_wrap=True)


def _follow(console: Console, live: LiveRun, level: int, limit: int | None) -> int:
    """Until `limit` requests are over, the engine ends, or Ctrl-C comes; its exit code."""
    since, over, code = monotonic_ns(), set[str](), 0
    until = "Ctrl-C ends it" if limit is None else f"for {count(limit, 'request')}, or until Ctrl-C"
    console.print(Screen.of(console).title("attached", f"engine {live.pid}", f"level {level}", until))
    tail = Tail(live.path)
    try:
        with switched(live.path, level, limit):
            while is_alive(live.pid) and (limit is None or len(over) < limit):
                sleep(POLL_S)
                _tell(console, tail, since, over)
    except KeyboardInterrupt:
        code = INTERRUPTED
    _tell(console, tail, since, over)
    if over:
        views.look_again(console, live.path)
    else:
        console.print(Text("No request began and ended meanwhile.", DIM))
    return code


def _tell(console: Console, tail: Tail, since: int, over: set[str]) -> None:
    """A line for each request that came after `since` and is over now."""
    screen = Screen.of(console)
    for request in tail.poll().requests:
        if request.accept.t >= since and request.accept.span_id not in over and _is_over(request):
            over.add(request.accept.span_id)
            console.print(screen.fit(_line(request, screen)))


def _is_over(request: RequestJourney) -> bool:
    """Front end and engine core are both done with it."""
    return request.close is not None and all(stay.t_end is not None or stay.process.died for stay in request.stays)


def _line(request: RequestJourney, screen: Screen) -> Text:
    line = Text().append(screen.printable(request.accept.external_id), STRONG).append(f"  {ending(request)}")
    if request.close is not None:
        first = first_token(request)
        line.append(f"  {count(request.close.num_output_tokens, 'token')}")
        line.append("" if first is None else f", the first after {span(first)}", DIM)
        line.append(f", over after {span(request.close.t - request.accept.t)}", DIM)
    return line
