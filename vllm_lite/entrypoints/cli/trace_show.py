"""`vllm-lite trace show DIR`: the journeys that a run's spools tell.

Process: its own. Knows: options, the console's views. Does not know: engines.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import argparse

from vllm_lite.config.checks import check_int, refuse
from vllm_lite.console.bag import BagView
from vllm_lite.console.theme import new_console, request_name
from vllm_lite.console.timeline import Waterfall
from vllm_lite.entrypoints.cli import views
from vllm_lite.tracing.journey import Run

EXAMPLES = """examples:
  vllm-lite trace show RUN                        mailroom, waterfalls, totals
  vllm-lite trace show RUN --view mailroom --all  every bag, none left out
  vllm-lite trace show RUN --request B            one request, by letter or id
  vllm-lite trace show RUN --slow 3               the three slowest requests
  vllm-lite trace show RUN --bag 17               one bag under the glass
"""


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `show` to the actions of `vllm-lite trace`."""
    parser = actions.add_parser(
        "show",
        help="show the journeys of a run",
        usage="vllm-lite trace show DIR [options]",
        description="Show the journeys that the spools of a run directory tell. Width and colour are\n"
        "the terminal's; COLUMNS, NO_COLOR and FORCE_COLOR are honoured.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("dir", metavar="DIR", help="the run directory")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--view", choices=views.VIEWS, help="one view instead of all three")
    what.add_argument("--request", metavar="ID", help="the waterfall of one request")
    what.add_argument("--slow", metavar="N", type=int, help="the N slowest requests, where their time went")
    what.add_argument("--bag", metavar="N", type=int, help="one bag, in microseconds")
    parser.add_argument("--all", action="store_true", help="leave nothing out of the middle of long runs")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Show it. Raises FileNotFoundError where there is no such run, VLLMValidationError for an unknown request or bag."""
    if args.slow is not None:
        check_int("--slow", args.slow, 1, None)
    loaded, console = views.open_run(args.dir), new_console()
    if args.request is not None:
        number = _find(loaded, args.request)
        console.print(Waterfall(loaded.requests[number], number))
    elif args.slow is not None:
        views.show_slowest(console, loaded, args.slow)
    elif args.bag is not None:
        console.print(_bag(loaded, args.bag))
    else:
        views.show(console, loaded, (args.view,) if args.view else views.VIEWS, everything=args.all)
    return 0


def _find(loaded: Run, wanted: str) -> int:
    for number, request in enumerate(loaded.requests):
        ids = {request.accept.external_id, *(post.internal_id for post in request.posts)}
        if wanted in ids or wanted == request_name(number):
            return number
    last = request_name(len(loaded.requests) - 1) if loaded.requests else "none"
    raise refuse("--request", wanted, f"a letter up to {last}, or the id of a request of this run")


def _bag(loaded: Run, number: int) -> BagView:
    try:
        return BagView(loaded, number)
    except KeyError:
        last = max((bag.sort.bag for bag in loaded.bags), default=-1)
        raise refuse("--bag", number, f"the number of a bag of this run, at most {last}") from None
