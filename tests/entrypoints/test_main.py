from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.entrypoints.command import vllm_lite
from vllm_lite import __version__
from vllm_lite.entrypoints.cli import main as command
from vllm_lite.entrypoints.cli.main import build_parser, main
from vllm_lite.exceptions import (
    EngineDeadError,
    EngineGenerateError,
    EngineStartError,
    QueueOverflowError,
    UnsupportedModelError,
    VLLMValidationError,
)
from vllm_lite.tracing.canned import write_canned_run

ACTIONS = ("run", "show", "check", "export", "diff", "attach", "top", "doctor")
NEEDS = {"show": ["DIR"], "check": ["DIR"], "export": ["DIR"], "diff": ["A", "B"]}
COMMANDS = [["tour"], *(["trace", action] for action in ACTIONS)]
HELP = [["--help"], ["trace", "--help"], *([*command, "--help"] for command in COMMANDS)]


@pytest.mark.parametrize("argv", HELP, ids=" ".join)
def test_help(argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: vllm-lite")
    assert max(map(len, text.splitlines())) <= 80
    if argv[:-1] in COMMANDS:
        assert f"\nexamples:\n  vllm-lite {' '.join(argv[:-1])} " in text


@pytest.mark.parametrize("argv", [[], ["trace"]], ids=" ".join)
def test_a_command_that_names_no_action_gets_the_help(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: vllm-lite")
    assert "watch tokens travel" in said or "show the journeys of a run" in said


def test_every_example_in_the_help_is_understood() -> None:
    parser = build_parser()
    for words in COMMANDS:
        known = parser.parse_args([*words, *NEEDS.get(words[-1], ())])
        text = known.parser.epilog.replace("\\\n      ", "")
        lines = [line.strip().removeprefix("vllm-lite ") for line in text.splitlines()[1:]]
        assert lines
        for line in lines:
            example = shlex.split(re.split(r" {2,}| \| ", line)[0])  # without what it is for, and who reads it
            assert parser.parse_args(example).run is known.run


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"vllm-lite {__version__}\n"


@pytest.mark.parametrize(
    "argv",
    [
        *(["serve"], ["trace", "follow"], ["trace", "run", "--nope"], ["trace", "run", "--max-tok", "3"]),
        *(["trace", "show"], ["trace", "show", "x", "--view", "all"], ["trace", "show", "x", "--bag", "1", "--request", "A"]),
        *(["trace", "check", "x", "--no-orphan"], ["trace", "run", "--requests", "many"]),
    ],
    ids=" ".join,
)
def test_unknown_things_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["run", "x", "--tensor-parallel-size", "2"], "--tensor-parallel-size is not served: each worker "),
        (["run", "x", "--tp=2"], "--tp is not served: each worker "),
        (["run", "-tp", "2"], "-tp is not served: each worker "),
        (["run", "x", "--speculative-config", "{}"], "--speculative-config is not served: every step "),
        (["run", "x", "--host", "h"], "unrecognized arguments: --host h; see `vllm-lite trace run --help`"),
        (["run", "x", "--modle=some/folder"], "arguments: --modle=some/folder (did you mean --model?); see "),
        (["show", "x", "--vieww", "all"], "--vieww all (did you mean --view?); see `vllm-lite trace show --help`"),
    ],
)
def test_of_an_unknown_option_it_is_said_what_to_do(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["trace", *argv])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        *((VLLMValidationError("top_p must be a number"), 2), (UnsupportedModelError("no such model"), 2)),
        *((FileNotFoundError("nothing there"), 2), (NotADirectoryError("a file"), 2), (PermissionError("not yours"), 2)),
        *(
            (IsADirectoryError("a folder"), 2),
            (FileExistsError("a file"), 2),
            (OSError("full"), 1),
            (EngineStartError("it ended"), 1),
        ),
        *((EngineDeadError("it is dead"), 1), (EngineGenerateError("failed"), 1), (QueueOverflowError("full"), 1)),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_are_one_line_and_an_exit_code(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: argparse.Namespace) -> int:
        raise error

    parser = argparse.ArgumentParser()
    parser.set_defaults(run=fail)
    monkeypatch.setattr(command, "build_parser", lambda: parser)
    assert main([]) == code
    said = str(error) or "ended by Ctrl-C"
    assert capsys.readouterr().err == f"vllm-lite: {said}\n"


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    run = write_canned_run(tmp_path / "run")
    with open("/dev/full", "w", encoding="ascii") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "vllm_lite.entrypoints.cli.main", "trace", "check", str(run)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (1, "vllm-lite: [Errno 28] No space left on device\n")


def test_an_error_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    parser.set_defaults(run=lambda _: {}["bug"])
    monkeypatch.setattr(command, "build_parser", lambda: parser)
    with pytest.raises(KeyError):
        main([])


def test_the_command_line_is_quick_to_refuse() -> None:
    done = vllm_lite("trace", "run", "--max-tokens", "0")
    assert done.returncode == 2
    assert done.stderr == "vllm-lite: max_tokens must be an integer >= 1; got 0\n"
    assert done.stdout == ""
