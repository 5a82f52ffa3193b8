"""The command `vllm-lite`: finds the sub-command, and turns the errors a user can meet into one line and an exit code.

Process: front end. Knows: names of sub-commands. Does not know: what they do.
Exit codes: 0 done; 1 the engine failed or a check did not hold; 2 the command line or its values were refused; 130 Ctrl-C.
Mirrors: vllm/entrypoints/cli/main.py
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence

from vllm_lite import __version__
from vllm_lite.engine_args import tell_unknown
from vllm_lite.entrypoints.cli.session import INTERRUPTED
from vllm_lite.entrypoints.cli.tour import add_tour
from vllm_lite.entrypoints.cli.trace_check import add_check
from vllm_lite.entrypoints.cli.trace_export import add_doctor, add_export
from vllm_lite.entrypoints.cli.trace_live import add_attach, add_top
from vllm_lite.entrypoints.cli.trace_run import add_run
from vllm_lite.entrypoints.cli.trace_show import add_diff, add_show
from vllm_lite.exceptions import EngineDeadError, EngineGenerateError, EngineStartError, QueueOverflowError, VLLMClientError

FAILED, REFUSED = 1, 2
WRONG_PATHS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="vllm-lite", description="vLLM V1's engine in small, and a window on it.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"vllm-lite {__version__}")
    parser.set_defaults(run=_help, parser=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    trace = commands.add_parser(
        "trace",
        help="watch tokens travel: run, show, check and more",
        description="Watch tokens travel from the engine's step to their caller.",
        allow_abbrev=False,
    )
    trace.set_defaults(run=_help, parser=trace)
    actions = trace.add_subparsers(title="actions", metavar="ACTION")
    for add in (add_run, add_show, add_check, add_export, add_diff, add_attach, add_top, add_doctor):
        add(actions)
    add_tour(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (the process's own where None) and return the exit code."""
    args, unknown = build_parser().parse_known_args(argv)
    if unknown:
        args.parser.error(_unknown(args.parser, unknown))
    try:
        return int(args.run(args))
    except (VLLMClientError, *WRONG_PATHS) as error:
        return _complain(error, REFUSED)
    except BrokenPipeError:  # `| head` has seen enough
        _release_stdout()
        return FAILED
    except (OSError, EngineStartError, EngineDeadError, EngineGenerateError, QueueOverflowError) as error:
        _release_stdout()  # the disk may be full
        return _complain(error, FAILED)
    except KeyboardInterrupt:
        return _complain("ended by Ctrl-C", INTERRUPTED)


def _help(args: argparse.Namespace) -> int:
    """What a command that names no action gets."""
    args.parser.print_help(sys.stderr)
    return REFUSED


def _unknown(parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """What to say of words that no option claims, which one the first of them may have meant, and where to look."""
    options = re.findall(r"--[a-z][\w-]*", parser.format_help())
    return tell_unknown(words[0], f"unrecognized arguments: {' '.join(words)}", options) + f"; see `{parser.prog} --help`"


def _release_stdout() -> None:
    """What cannot be written now would be tried again when the interpreter ends, with a traceback."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(error: object, code: int) -> int:
    print(f"vllm-lite: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
