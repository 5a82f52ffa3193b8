"""`vllm-lite trace attach RUN` and `trace top RUN`: an engine that runs already, its requests one by one or its mailroom.

Process: its own. Knows: options, live runs, the views. Does not know: engines. `top` rests at least four times as long as it
took to read and draw, so that it never takes more than a fifth of a core from the engine.
Mirrors: nothing in vLLM.
"""

import argparse
from time import localtime, monotonic_ns, sleep, strftime

from rich.console import Console
from rich.live import Live
from rich.text import Text

from vllm_lite.config.checks import check_int
from vllm_lite.console.figures import count, span
from vllm_lite.console.theme import DIM, STRONG, Screen, new_console
from vllm_lite.console.timeline import story
from vllm_lite.console.top import Top
from vllm_lite.entrypoints.cli import views
from vllm_lite.entrypoints.cli.command import Commands, add_command
from vllm_lite.entrypoints.cli.session import INTERRUPTED
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.live import LiveRun, Tail, find_live_run, live_runs, switched
from vllm_lite.tracing.process import is_alive

ATTACH = """
attach: trace an engine that runs already

vllm-lite trace attach [RUN] [options]

Trace the requests that come to a running engine from now on, and print each
that ends. Ctrl-C, or the last request of --trace-count, puts the level back.

examples:
  vllm-lite trace attach                        the only engine that runs here
  vllm-lite trace attach 4711                   the one with this process id
  vllm-lite trace attach 4711 --trace-count 20  the next 20 requests
  vllm-lite trace attach RUN --level 1          by its run directory
"""
TOP = """
top: watch the mailroom of a running engine

vllm-lite trace top [RUN]

Draw the last bags of a running engine, ten times a second at most, until
Ctrl-C. Meanwhile it is traced at level 2 at least; a request from before that
has no column. One frame where the output is no terminal.

examples:
  vllm-lite trace top         the only engine that runs here
  vllm-lite trace top 4711    by its process id, or its run directory
"""
RUN = "process id or run directory; absent: the only one that runs"
ATTACH_LEVEL = 3
TOP_LEVEL = 2  # single letters
POLL_S = 0.1
FRAME_S, REST = 0.1, 4
LOOK_S = 1.0  # where the output is no terminal


def add_attach(commands: Commands) -> None:
    """Add `attach` to the actions of `vllm-lite trace`."""
    parser = add_command(commands, attach, ATTACH)
    parser.add_argument("live", metavar="RUN", nargs="?", help=RUN)
    parser.add_argument("--level", type=int, metavar="N", help=f"the trace level meanwhile, 1 to 3 ({ATTACH_LEVEL})")
    parser.add_argument("--trace-count", type=int, metavar="N", help="trace so many requests and end")


def add_top(commands: Commands) -> None:
    """Add `top` to the actions of `vllm-lite trace`."""
    parser = add_command(commands, watch, TOP)
    parser.add_argument("live", metavar="RUN", nargs="?", help=RUN)


def _find(console: Console, wanted: str | None) -> LiveRun:
    """The engine that is meant; where that is not clear, those that run are listed."""
    try:
        return find_live_run(wanted)
    except VLLMValidationError:
        if runs := live_runs():
            screen = Screen.of(console)
            console.print(screen.title("engines that run", str(len(runs))))
            console.print(Text(f"{'pid':>9}  started       {'model':<21}  run directory", DIM))
            for live in runs:
                since, model = strftime("%d %b %H:%M", localtime(live.started)), live.model or "not traced yet"
                line = Text.assemble((f"{live.pid:>9}", STRONG), f"  {since}  {screen.printable(model):<21}  {live.path}")
                console.print(line, soft_wrap=True)
        raise


def _say_whether_it_ended(console: Console, live: LiveRun) -> None:
    """Why the command is over, where nobody at the keyboard ended it: what is on the screen is the engine's past."""
    if not is_alive(live.pid):
        console.print(Text("The engine has ended.", DIM))


# ---- attach ----------------------------------------------------------------------------------------------------------------


def attach(args: argparse.Namespace) -> int:
    """Follow it. Raises VLLMValidationError where there is no such engine, or several and none was named."""
    for option, value, most in (("--level", args.level, 3), ("--trace-count", args.trace_count, None)):
        if value is not None:
            check_int(option, value, 1, most)
    console = new_console()
    return _follow(console, _find(console, args.live), args.level or ATTACH_LEVEL, args.trace_count)


def _follow(console: Console, live: LiveRun, level: int, limit: int | None) -> int:
    """Until `limit` requests are over, the engine ends, or Ctrl-C comes; its exit code."""
    since, over, models, code = monotonic_ns(), set[str](), set[str](), 0
    until = "Ctrl-C ends it" if limit is None else f"for {count(limit, 'request')}, or until Ctrl-C"
    console.print(Screen.of(console).title("attached", f"engine {live.pid}", f"level {level}", until))
    tail = Tail(live.path)
    try:
        with switched(live.path, level, limit):
            while is_alive(live.pid) and (limit is None or len(over) < limit):
                sleep(POLL_S)
                _tell(console, tail, since, over, models)
    except KeyboardInterrupt:
        code = INTERRUPTED
    _tell(console, tail, since, over, models)
    _say_whether_it_ended(console, live)
    if over:
        views.look_again(console, live.path)
    else:
        console.print(Text("No request began and ended meanwhile.", DIM))
    return code


def _tell(console: Console, tail: Tail, since: int, over: set[str], models: set[str]) -> None:
    """The model, once a request tells it; a line for each that came after `since` and is over for both processes."""
    screen, requests = Screen.of(console), tail.poll().requests
    for model in {request.accept.model for request in requests} - models:
        models.add(model)
        console.print(Text(f"model {screen.printable(model)}", DIM))
    for request in requests:
        is_over = all(stay.t_end is not None or stay.process.died for stay in request.stays)
        if request.close is not None and is_over and request.accept.t >= since and request.accept.span_id not in over:
            over.add(request.accept.span_id)
            name, took = screen.printable(request.accept.external_id), span(request.close.t - request.accept.t)
            console.print(Text.assemble((name, STRONG), f"  {took}  {story(request)}"))


# ---- top -------------------------------------------------------------------------------------------------------------------


def watch(args: argparse.Namespace) -> int:
    """Watch it. Raises VLLMValidationError where there is no such engine, or several and none was named."""
    console = new_console()
    live = _find(console, args.live)
    top, tail, code = Top(f"engine {live.pid}"), Tail(live.path), 0
    with switched(live.path, max(live.level, TOP_LEVEL)):
        if console.is_terminal:
            code = _draw(console, live, top, tail)
        else:
            sleep(LOOK_S)
            top.look(tail.poll(), monotonic_ns())
    console.print(top)
    _say_whether_it_ended(console, live)
    return code


def _draw(console: Console, live: LiveRun, top: Top, tail: Tail) -> int:
    """Frame after frame, until the engine ends or Ctrl-C comes."""
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
