from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.console.screens import printed, screen
from vllm_lite.engine_args import AsyncEngineArgs
from vllm_lite.entrypoints.cli.callers import Call
from vllm_lite.entrypoints.cli.session import Session
from vllm_lite.exceptions import UnsupportedModelError
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams


def toy(model: Path, out: Path, **options: object) -> AsyncEngineArgs:
    args = AsyncEngineArgs(model=str(model), distributed_executor_backend="toy", trace_level=3, trace_dir=str(out))
    for name, value in options.items():
        setattr(args, name, value)
    return args


def call(number: int, **params: object) -> Call:
    made = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, output_kind=RequestOutputKind.DELTA, **params)
    return Call(number, f"caller-{number}", "hello", made)


def test_one_engine_answers_again_and_again(tiny_model_path: Path, tmp_path: Path) -> None:
    console = screen(80)
    with Session(console, toy(tiny_model_path, tmp_path / "run")) as session:
        for number in range(3):
            session.answer([call(number)], concurrency=1)
            run = session.recorded()
            assert run is not None
            assert [request.close is not None for request in run.requests] == [True] * (number + 1)
        children = psutil.Process().children(recursive=True)
        assert children
    assert not any(child.is_running() for child in children)
    assert [receipt.kind for receipt in session.receipts] == ["finished"] * 3
    assert session.exit_code == 0
    assert session.run_dir == tmp_path / "run"
    session.show()
    assert printed(console).endswith(f"vllm-lite trace check {tmp_path / 'run'}\n")


def test_a_model_with_a_chat_template_is_talked_to_in_it(tiny_model_path: Path, tmp_path: Path) -> None:
    with Session(screen(80), toy(tiny_model_path, tmp_path / "run")) as session:
        assert session._chat
        session.answer([call(0)], concurrency=1)
        run = session.recorded()
    assert run is not None
    (prompt,) = run.requests[0].tokenised
    assert prompt.num_prompt_tokens > len("hello")


def test_the_first_screen_names_a_worker_in_a_process_of_its_own(tiny_model_path: Path, tmp_path: Path) -> None:
    console, args = screen(80), toy(tiny_model_path, tmp_path / "run", distributed_executor_backend="mp")
    with Session(console, args):
        shown = printed(console).splitlines()
        (line,) = [line for line in shown if line.startswith("pids: ")]
        core, worker = (int(part.split()[-1]) for part in line.split(", ")[1:])
        assert line.startswith(f"pids: front end {os.getpid()}, engine core {core}, worker {worker}")
        assert psutil.Process(worker).ppid() == core
        assert re.fullmatch(r"cpu, float32, torch_sdpa, executor mp, ready after \d+\.\d s", shown[shown.index(line) - 1])
        assert re.fullmatch(r"KV cache: [\d,]+ blocks of 16 tokens, [\d,]+ MiB", shown[shown.index(line) + 1])
        assert "".join(shown[shown.index(line) + 2 :]).replace(" ", "") == f"tracelevel3,run{tmp_path / 'run'}"


def test_several_engine_cores_are_named(tiny_model_path: Path, tmp_path: Path) -> None:
    console = screen(80)
    with Session(console, toy(tiny_model_path, tmp_path / "run", data_parallel_size=2), show_map=True) as session:
        pids = [str(core.pid) for core in session.engine.engine_core.ready]
    assert f"pids: front end {os.getpid()}, engine cores {', '.join(pids)}\n" in printed(console)
    assert len(pids) == 2


def test_an_engine_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError), Session(screen(80), toy(tmp_path / "none", tmp_path / "run")):
        pass
    assert psutil.Process().children(recursive=True) == []


def test_ctrl_c_ends_everything_and_still_shows_the_journey(tiny_model_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-u", "-m", "vllm_lite.entrypoints.cli.main", "trace", "run", "--model", str(tiny_model_path)]
    command += ["--distributed-executor-backend", "toy", "--additional-config", '{"toy_step_time": 0.005}']
    command += ["--ignore-eos", "--max-tokens", "4000", "--out", str(out)]
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, "COLUMNS": "80"}
    )
    assert run.stdout is not None
    for line in run.stdout:
        if line.startswith("A | "):  # letters are coming
            break
    children = psutil.Process(run.pid).children(recursive=True)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    rest = run.stdout.read()
    run.stdout.close()
    assert run.wait(timeout=30) == 130
    assert "left by its caller" in rest
    assert "MAILROOM  " in rest
    assert "A abort: caller left; the core heard it" in rest
    assert "TOTALS  1 request " in rest
    assert rest.endswith(f"{out}\nEnded by Ctrl-C. What was recorded until then lies in the folder above.\n")
    assert "Traceback" not in rest
    assert children
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
