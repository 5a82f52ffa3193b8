from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from tests.entrypoints.command import vllm_lite
from vllm_lite.entrypoints.cli.main import build_parser, main
from vllm_lite.entrypoints.cli.trace_run import PROMPTS, plan
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.sampling_params import RequestOutputKind
from vllm_lite.tracing.journey import load_run

TRACEPARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def parsed(*argv: str) -> argparse.Namespace:
    return build_parser().parse_args(["trace", "run", *argv])


def toy(model: Path, *argv: str | Path) -> list[str]:
    words = ["trace", "run", "--model", model, "--distributed-executor-backend", "toy", "--ignore-eos", *argv]
    return [str(word) for word in words]


def test_one_built_in_prompt_where_nothing_is_asked() -> None:
    (call,) = plan(parsed())
    assert (call.text, call.request_id, call.slow, call.leaves_after) == (PROMPTS[0], "caller-A", 0.0, None)
    params = call.params
    assert (params.temperature, params.max_tokens, params.stop, params.ignore_eos) == (0.0, 32, [], False)
    assert params.output_kind is RequestOutputKind.DELTA


def test_prompts_are_used_in_turn() -> None:
    assert [call.text for call in plan(parsed("one", "two"))] == ["one", "two"]
    assert [call.text for call in plan(parsed("one", "two", "--requests", "5"))] == ["one", "two", "one", "two", "one"]
    calls = plan(parsed("--requests", str(len(PROMPTS) + 1)))
    assert [call.text for call in calls] == [*PROMPTS, PROMPTS[0]]
    assert len({len(prompt) for prompt in PROMPTS}) == len(PROMPTS)
    assert [call.number for call in calls] == list(range(len(calls)))


def test_options_go_to_every_request() -> None:
    calls = plan(
        parsed("--requests", "2", "--max-tokens", "7", "--temperature", "0.5", "--ignore-eos", "--traceparent", TRACEPARENT)
    )
    for call in calls:
        assert (call.params.max_tokens, call.params.temperature, call.params.ignore_eos) == (7, 0.5, True)
        assert call.traceparent == TRACEPARENT


def test_stop_strings_go_to_every_request_unless_told_otherwise() -> None:
    calls = plan(parsed("--requests", "3", "--stop", "a", "--stop", "b"))
    assert [call.params.stop for call in calls] == [["a", "b"]] * 3
    calls = plan(parsed("--requests", "3", "--stop", "a", "--stop-requests", "1"))
    assert [call.params.stop for call in calls] == [["a"], [], []]


def test_habits_go_to_different_callers() -> None:
    calls = plan(
        parsed(
            *("--requests", "64", "--slow-reader", "50", "--stop", "x", "--stop-requests", "3"),
            *("--abort-after", "20", "--abort-requests", "3"),
        )
    )
    assert [call.number for call in calls if call.slow] == [0]
    assert calls[0].slow == 0.05
    assert [call.number for call in calls if call.leaves_after == 20] == [1, 2, 3]
    assert [call.number for call in calls if call.params.stop] == [4, 5, 6]


def test_habits_share_a_caller_where_there_are_too_few() -> None:
    (call,) = plan(parsed("--slow-reader", "5", "--abort-after", "2", "--stop", "x"))
    assert (call.slow, call.leaves_after, call.params.stop) == (0.005, 2, ["x"])


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        *(
            (["--requests", "0"], "--requests"),
            (["--slow-reader", "0"], "--slow-reader"),
            (["--slow-reader", "nan"], "--slow-reader"),
        ),
        *((["--abort-after", "0"], "--abort-after"), (["--stop", ""], "stop"), (["--temperature", "-1"], "temperature")),
        *((["--max-tokens", "-1"], "max_tokens"), (["--traceparent", "00-zz"], "--traceparent")),
        *((["--slow-requests", "2"], "--slow-requests"), (["--requests", "3", "--stop-requests", "4"], "--stop-requests")),
        *((["--abort-requests", "0"], "--abort-requests"), (["\udcff"], "PROMPT"), (["--stop", "\udcff"], "stop")),
    ],
    ids=lambda value: ascii(" ".join(value)) if isinstance(value, list) else "",
)
def test_bad_values_are_refused_by_name(argv: list[str], named: str) -> None:
    with pytest.raises(VLLMValidationError, match=f"^{named} must be"):
        plan(parsed(*argv))


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--concurrency", "0"], "--concurrency must be an integer >= 1; got 0"),
        (["--demo", "a prompt"], "PROMPT must be absent with --demo"),
        (["--demo", "--stop", "x"], "--stop must be absent with --demo"),
        (["--demo", "--max-tokens", "0"], "--max-tokens must be absent with --demo"),
        (["--demo", "--slow-requests", "2"], "--slow-requests must be absent with --demo"),
        (["--level", "7"], "--level must be an integer >= 0 and <= 3; got 7"),
        (["--block-size", "0"], "block_size must be"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_the_engine_would_refuse_is_refused(argv: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "run", "--model", "tiny", *argv]) == 2
    assert named in capsys.readouterr().err


def test_a_run_shows_answers_views_and_where_it_lies(tiny_model_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = vllm_lite(*toy(tiny_model_path, "one", "two", "--max-tokens", "12", "--stop", "zzz", "--out", out))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    text = done.stdout
    for part in ("A > one", "B > two", "A = 12 tokens in ", "pids: front end ", "KV cache: ", "trace level 3, run"):
        assert part in text
    order = [
        text.index(part) for part in ("MAILROOM  ", "REQUESTS  2 requests", "REQUEST A", "REQUEST B", "TOTALS", "LOOK AGAIN")
    ]
    assert order == sorted(order)
    assert text.endswith(f"vllm-lite trace show {out}\nvllm-lite trace check {out}\n")
    views = text[text.index("MAILROOM") : text.index("LOOK AGAIN")]
    assert max(len(line) for line in views.splitlines()) <= 80
    assert len(load_run(out).requests) == 2


def test_a_traceparent_that_says_no_is_respected_and_told(tiny_model_path: Path, tmp_path: Path) -> None:
    unsampled = TRACEPARENT[:-2] + "00"
    done = vllm_lite(*toy(tiny_model_path, "one", "--max-tokens", "3", "--traceparent", unsampled, "--out", tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "No request was traced in" in done.stdout
    assert "MAILROOM" not in done.stdout


def test_at_level_0_nothing_is_traced_and_told_why(tiny_model_path: Path, tmp_path: Path) -> None:
    done = vllm_lite(*toy(tiny_model_path, "one", "--max-tokens", "3", "--level", "0", "--out", tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("No request was traced: the trace level is 0, and --level 1 to 3 records them.\n")


def test_at_level_1_the_mailroom_says_why_it_is_not_there(tiny_model_path: Path, tmp_path: Path) -> None:
    done = vllm_lite(*toy(tiny_model_path, "one", "--max-tokens", "3", "--level", "1", "--out", tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "Single letters are recorded from level 2: there is no mailroom at level 1." in done.stdout
    assert "REQUEST A" in done.stdout
    assert "TOTALS" in done.stdout


def test_a_request_that_the_engine_refuses_fails_the_run(tiny_model_path: Path, tmp_path: Path) -> None:
    options = ("--max-model-len", "64", "--max-tokens", "3", "--out", tmp_path / "run")
    done = vllm_lite(*toy(tiny_model_path, "x" * 500, "short", *options))
    assert done.returncode == 1
    assert "A = 0 tokens in 0 letters, error: prompt must be at most 63 tokens long" in " ".join(done.stdout.split())
    assert "B = 3 tokens in " in done.stdout
    assert "Traceback" not in done.stderr


def test_a_folder_with_a_run_is_not_written_into(tiny_model_path: Path, tmp_path: Path) -> None:
    (tmp_path / "control").touch()
    done = vllm_lite(*toy(tiny_model_path, "one", "--out", tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("vllm-lite: --out must be a folder that holds no run yet")


@pytest.mark.parametrize("name", ["file", "x" * 300])
def test_a_folder_that_cannot_be_made_is_told_under_the_options_name(tiny_model_path: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    done = vllm_lite(*toy(tiny_model_path, "one", "--out", tmp_path / name))
    assert done.returncode == 2
    assert done.stderr.startswith("vllm-lite: --out must be a folder that can be made and written here ")


def test_an_unknown_option_is_told_with_the_one_that_was_meant() -> None:
    done = vllm_lite("trace", "run", "hi", "--modle", "tiny")
    assert done.returncode == 2
    assert "usage: vllm-lite trace run" in done.stderr
    assert "unrecognized arguments: --modle tiny (did you mean --model?); see `vllm-lite trace run --help`\n" in done.stderr


def test_an_engine_that_cannot_start_is_one_line(tiny_model_path: Path) -> None:
    done = vllm_lite(*toy(tiny_model_path, "one", "--kv-cache-memory-bytes", "1"))
    assert done.returncode in (1, 2)
    assert done.stderr.splitlines()[-1].startswith("vllm-lite: ")


def test_who_reads_no_further_ends_the_run_without_a_word(tiny_model_path: Path, tmp_path: Path) -> None:
    """As with `| head`: the first line that nobody takes is an answer's, printed by a task."""
    command = [sys.executable, "-m", "vllm_lite.entrypoints.cli.main"]
    words = map(str, toy(tiny_model_path, "one", "two", "--max-tokens", "5", "--out", tmp_path / "run"))
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        for line in run.stdout:
            if "ready after" in line:
                break
        run.stdout.close()
        assert (run.stderr.read(), run.wait()) == ("", 1)
