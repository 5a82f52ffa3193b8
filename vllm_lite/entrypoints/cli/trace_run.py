"""`vllm-lite trace run`: callers ask a real engine, their answers stream, and the journey of every token is shown.

Process: front end. Knows: options, and which caller gets which habit. Does not know: how an engine or a view works.
Mirrors: nothing in vLLM.
"""

import argparse
import itertools
import os.path
from typing import cast

from vllm_lite.config.checks import check_int, check_number, check_text, refuse
from vllm_lite.console.theme import new_console, request_name
from vllm_lite.engine_args import AsyncEngineArgs
from vllm_lite.entrypoints.cli.callers import Call
from vllm_lite.entrypoints.cli.command import Commands, add_command
from vllm_lite.entrypoints.cli.session import Session
from vllm_lite.entrypoints.cli.trace_demo import play_demo
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams
from vllm_lite.tracing.context import parse_traceparent
from vllm_lite.tracing.control_page import CONTROL_FILE

RUN = """
run: ask an engine and show the journey

vllm-lite trace run [PROMPT ...] [options]

Start an engine, ask it, print the answers as they come, then the mailroom (one
row for each bag), a waterfall for each request, and totals.

examples:
  vllm-lite trace run "What is the capital of France?"
  vllm-lite trace run --demo                                 four acts
  vllm-lite trace run "Tell me a story." --slow-reader 100   letters are stapled
  vllm-lite trace run "List the days of the week." --stop Wednesday
  vllm-lite trace run "Tell me a story." --abort-after 10    a caller walks away
  vllm-lite trace run --requests 64 --concurrency 16 --max-tokens 200 \\
      --slow-reader 500 --stop " the" --stop "." --stop "," --stop-requests 3 \\
      --abort-after 20 --abort-requests 3 --out runs/64
"""
PROMPTS = (
    "What is the capital of France?",
    "Write a short letter to a friend about a walk in the snow, and tell what you saw on the way.",
    "Name three colours.",
    "Explain in simple words why the sky is blue in the day and red in the evening. Begin with what light is made of.",
    "Count from one to twenty.",
    "How does a post office work? Tell it as a story of one letter, from the street to the mailbox, and name everyone who "
    "has it in hand on the way: who takes it in, who sorts it, who carries it, and what each of them looks at.",
    "What is a token?",
    "Give me a recipe for bread with four steps.",
)
DEMO_BRINGS = (
    *("prompts", "requests", "concurrency", "max_tokens", "temperature", "ignore_eos", "stop", "stop_requests"),
    *("slow_reader", "slow_requests", "abort_after", "abort_requests", "traceparent"),
)


def add_run(commands: Commands) -> None:
    """Add `run` to the actions of `vllm-lite trace`."""
    parser = add_command(commands, run, RUN)
    parser.add_argument("prompts", metavar="PROMPT", nargs="*", help="what to ask; built-in prompts where absent")
    parser.add_argument("--demo", action="store_true", help="play four acts instead: an ordinary answer, a stop string, a "
                        "slow reader, two long answers at once")  # fmt: skip
    _add_caller_options(parser.add_argument_group("callers"))
    trace = parser.add_argument_group("recording")
    trace.add_argument("--level", dest="trace_level", type=int, metavar="N", help="the same as --trace-level; 3 here")
    trace.add_argument("--out", dest="trace_dir", metavar="DIR", help="the run directory, the same as --trace-dir")
    trace.add_argument("--traceparent", metavar="HEADER", help="W3C header of the span that every request is a child of")
    # A group takes arguments as a parser does.
    AsyncEngineArgs.add_cli_args(cast("argparse.ArgumentParser", parser.add_argument_group("engine")))
    parser.set_defaults(trace_level=3)


def _add_caller_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--requests", type=int, metavar="N", help="how many requests; prompts are used in turn")
    group.add_argument("--concurrency", type=int, metavar="N", help="how many at a time; all where absent")
    group.add_argument("--max-tokens", type=int, default=32, metavar="N", help="the longest answer, in tokens (%(default)s)")
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (%(default)s)")
    group.add_argument("--ignore-eos", action="store_true", help="go on to --max-tokens whatever the model says")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="a stop string; may be given again")
    group.add_argument("--stop-requests", type=int, metavar="N", help="how many requests have the stop strings; all if absent")
    group.add_argument("--slow-reader", type=float, metavar="MS", help="a caller that waits so long between two letters")
    group.add_argument("--slow-requests", type=int, default=1, metavar="N", help="how many such callers (%(default)s)")
    group.add_argument("--abort-after", type=int, metavar="K", help="a caller that walks away after K tokens")
    group.add_argument("--abort-requests", type=int, default=1, metavar="N", help="how many such callers (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Ask an engine; what is wrong with the run directory is told under this command's name for it."""
    try:
        return _run(args)
    except VLLMValidationError as error:
        if error.parameter == "trace_dir":
            raise VLLMValidationError(str(error).replace("trace_dir", "--out", 1)) from error
        raise


def _run(args: argparse.Namespace) -> int:
    """Check everything that can be checked without an engine, then start one and ask it."""
    check_int("--level", args.trace_level, 0, 3)
    console = new_console()
    engine_args = AsyncEngineArgs.from_cli_args(args)
    engine_args.trace_keep = True  # the views below read what was recorded
    if args.demo:
        _refuse_in_demo(args)
        return play_demo(console, engine_args)
    calls = plan(args)
    if args.trace_dir is not None and os.path.exists(os.path.join(args.trace_dir, CONTROL_FILE)):
        raise refuse("--out", args.trace_dir, "a folder that holds no run yet: remove this one or choose another")
    concurrency = len(calls) if args.concurrency is None else args.concurrency
    check_int("--concurrency", concurrency, 1)
    with Session(console, engine_args) as session:
        session.answer(calls, concurrency)
    session.show()
    return session.exit_code


def _refuse_in_demo(args: argparse.Namespace) -> None:
    """The demo brings its own callers."""
    for name in DEMO_BRINGS:
        value = getattr(args, name)
        if value not in ([], args.parser.get_default(name)):
            option = "PROMPT" if name == "prompts" else f"--{name.replace('_', '-')}"
            raise refuse(option, value, "absent with --demo, which brings its own callers")


def plan(args: argparse.Namespace) -> list[Call]:
    """Who asks what, and who has which habit: slow readers come first, then those who leave, then those with stop strings.

    Raises VLLMValidationError naming the option.
    """
    prompts = [check_text("PROMPT", prompt) for prompt in args.prompts] or PROMPTS
    total = args.requests if args.requests is not None else len(args.prompts) or 1
    check_int("--requests", total, 1)
    if args.traceparent is not None and parse_traceparent(args.traceparent) is None:
        raise refuse("--traceparent", args.traceparent, "a W3C traceparent, such as 00-<32 hex digits>-<16 hex digits>-01")
    if args.slow_reader is not None:
        check_number("--slow-reader", args.slow_reader, 0, above_low=True)
    if args.abort_after is not None:
        check_int("--abort-after", args.abort_after, 1)
    slow, leaving, stopped = _habits(args, total)
    return [
        Call(
            number,
            f"caller-{request_name(number)}",
            prompt,
            SamplingParams(
                temperature=args.temperature,
                max_tokens=args.max_tokens,
                ignore_eos=args.ignore_eos,
                stop=args.stop if number in stopped else None,
                output_kind=RequestOutputKind.DELTA,
            ),
            slow=args.slow_reader / 1000 if number in slow else 0.0,
            leaves_after=args.abort_after if number in leaving else None,
            traceparent=args.traceparent,
        )
        for number, prompt in enumerate(itertools.islice(itertools.cycle(prompts), total))
    ]


def _habits(args: argparse.Namespace, total: int) -> list[set[int]]:
    """The numbers of slow readers, of callers that leave, and of those with stop strings; apart as long as there is room."""
    stop_requests = total if args.stop_requests is None else args.stop_requests
    start, found = 0, []
    for option, habit, many in (
        ("--slow-requests", args.slow_reader, args.slow_requests),
        ("--abort-requests", args.abort_after, args.abort_requests),
        ("--stop-requests", args.stop, stop_requests),
    ):
        check_int(option, many, 1)
        if many > total:
            raise refuse(option, many, f"at most the number of requests, {total}")
        found.append({(start + i) % total for i in range(many)} if habit else set())
        start += len(found[-1])
    return found
