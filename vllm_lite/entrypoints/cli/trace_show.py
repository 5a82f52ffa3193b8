"""`vllm-lite trace show DIR` and `trace diff A B`: the journeys that runs' spools tell.

Process: its own. Knows: options, the console's views. Does not know: engines.
Mirrors: nothing in vLLM.
"""

import argparse

from vllm_lite.config.checks import check_int, refuse
from vllm_lite.console.bag import BagView
from vllm_lite.console.diff import Diff
from vllm_lite.console.slowest import Slowest
from vllm_lite.console.theme import new_console, request_name
from vllm_lite.console.timeline import Waterfall
from vllm_lite.entrypoints.cli import views
from vllm_lite.entrypoints.cli.command import Commands, add_command
from vllm_lite.tracing.journey import Run

SHOW = """
show: show the journeys of a run

vllm-lite trace show DIR [options]

Show the journeys that the spools of a run directory tell. Width and colour are
the terminal's; COLUMNS, NO_COLOR and FORCE_COLOR are honoured.

examples:
  vllm-lite trace show RUN                        mailroom, waterfalls, totals
  vllm-lite trace show RUN --view mailroom --all  every bag, none left out
  vllm-lite trace show RUN --request B            one request, by letter or id
  vllm-lite trace show RUN --slow 3               the three slowest requests
  vllm-lite trace show RUN --bag 17               one bag under the glass
"""
DIFF = """
diff: compare two runs, station by station

vllm-lite trace diff A B

What came of each of two runs, and how long everything stayed at each station.
Below 10 % of a difference neither counts as faster.

examples:
  vllm-lite trace diff runs/before runs/after
"""


def add_show(commands: Commands) -> None:
    """Add `show` to the actions of `vllm-lite trace`."""
    parser = add_command(commands, show, SHOW)
    parser.add_argument("dir", metavar="DIR", help="the run directory")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--view", choices=views.VIEWS, help="one view instead of all three")
    what.add_argument("--request", metavar="ID", help="the waterfall of one request")
    what.add_argument("--slow", metavar="N", type=int, help="the N slowest requests, where their time went")
    what.add_argument("--bag", metavar="N", type=int, help="one bag, in microseconds")
    parser.add_argument("--all", action="store_true", help="leave nothing out of the middle of long runs")


def add_diff(commands: Commands) -> None:
    """Add `diff` to the actions of `vllm-lite trace`."""
    parser = add_command(commands, diff, DIFF)
    parser.add_argument("a", metavar="A", help="a run directory")
    parser.add_argument("b", metavar="B", help="the one to compare with it")


def show(args: argparse.Namespace) -> int:
    """Show it. Raises FileNotFoundError where there is no such run, VLLMValidationError for an unknown request or bag."""
    if args.slow is not None:
        check_int("--slow", args.slow, 1)
    run, console = views.open_run(args.dir), new_console()
    if args.request is not None:
        number = _find(run, args.request)
        console.print(Waterfall(run.requests[number], number))
    elif args.slow is not None:
        slowest = Slowest(run, args.slow)
        views.print_apart(console, (slowest, *(Waterfall(request, number) for number, request in slowest.shown)))
    elif args.bag is not None:
        console.print(_bag(run, args.bag))
    else:
        views.show(console, run, (args.view,) if args.view else views.VIEWS, everything=args.all)
    return 0


def diff(args: argparse.Namespace) -> int:
    """Compare them. Raises FileNotFoundError where one of them is no run."""
    new_console().print(Diff(views.open_run(args.a), views.open_run(args.b), (args.a, args.b)))
    return 0


def _find(run: Run, wanted: str) -> int:
    for number, request in enumerate(run.requests):
        ids = {request.accept.external_id, request_name(number), *(post.internal_id for post in request.posts)}
        if wanted in ids:
            return number
    last = request_name(len(run.requests) - 1) if run.requests else "none"
    raise refuse("--request", wanted, f"a letter up to {last}, or the id of a request of this run")


def _bag(run: Run, number: int) -> BagView:
    try:
        return BagView(run, number)
    except KeyError:
        last = max((bag.sort.bag for bag in run.bags), default=-1)
        raise refuse("--bag", number, f"the number of a bag of this run, at most {last}") from None
