from __future__ import annotations

from pathlib import Path

from tests.entrypoints.command import vllm_lite
from vllm_lite.entrypoints.cli.trace_demo import ACTS
from vllm_lite.tracing.journey import load_run


def test_four_acts_on_one_engine(tiny_model_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ["--model", tiny_model_path, "--distributed-executor-backend", "toy", "--out", out]
    done = vllm_lite("trace", "run", "--demo", *options)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    acts = [text.index(f"== Act {i + 1} of 4: {act.name}") for i, act in enumerate(ACTS)]
    assert acts == sorted(acts)
    assert text.index("clerk    the output handler") < acts[0]
    assert [text.count(title) for title in ("MAILROOM  ", "REQUEST ", "REQUESTS  ", "TOTALS  ", "LOOK AGAIN")] == [
        4,
        2,
        1,
        1,
        1,
    ]
    assert "D    E" in text[acts[3] :]  # names go on from act to act
    assert max(len(line) for line in text[: text.index("LOOK AGAIN")].splitlines() if "trace level" not in line) <= 80
    run = load_run(out)
    slow = run.requests[2].close
    assert slow is not None
    assert slow.staples > 0
    assert "\ncalls " not in text
    assert len(run.requests) == sum(len(act.asks) for act in ACTS) == 5
    assert len([process for process in run.processes if process.role == "frontend"]) == 1


def test_each_act_has_something_to_look_at() -> None:
    assert [len(act.asks) for act in ACTS] == [1, 1, 1, 2]
    assert ACTS[1].asks[0].stop is not None
    assert "one token more" in ACTS[1].caption
    assert "letter more" not in ACTS[1].caption
    assert ACTS[2].asks[0].steps_away > 1
    assert all(act.pictures and act.caption for act in ACTS)
