"""Scheduler CPU per request and step: schedule() and update_from_output(), with prefix cache, preemption and statistics on.

    python benchmarks/scheduler.py [--peer-python PYTHON] [--running 256] [--steps 400] [--rounds 5]

Prompts of 256 tokens share beginnings of 128, answers are 64 to 512 tokens long, and newcomers replace whoever has ended.
"roomy" has blocks for everybody; "tight" has so few that requests are preempted and computed again all the time. "ahead" plans
a step before the result of the last one is in. No model runs: the sampled tokens are made up between the timed calls. CPU
seconds of this thread, the median of rounds. With --peer-python (the interpreter of an environment that has vLLM) its own
Scheduler gets the same load, the two taking turns, and the ratio is held against the bar.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from vllm_lite.config.model_files import DEFAULT_MODEL, resolve_model

RATIO_BAR = 0.35
WARM_UP_STEPS = 300
CHILD = Path(__file__).parent / "scheduler_child.py"


def start(stack: ExitStack, python: str, *arguments: object) -> subprocess.Popen[str]:
    """A child with one busy scheduler."""
    command = [python, str(CHILD), *map(str, arguments)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    stack.callback(child.communicate)
    return child


def steps(child: subprocess.Popen[str], count: int) -> dict[str, float]:
    """One round's figures."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{count}\n")
    child.stdin.flush()
    line = child.stdout.readline()
    if not line:
        raise SystemExit(f"no figures came; run it by hand: echo {count} | {' '.join(map(str, child.args))}")  # type: ignore[arg-type]
    found: dict[str, float] = json.loads(line)
    return found


def main() -> int:
    """Measure and print a table; 1 where a ratio is above the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="the Python of an environment that has vLLM")
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400, help="of one round")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    pythons = {"vllm_lite": sys.executable} | ({"vllm": args.peer_python} if args.peer_python else {})
    model = resolve_model(DEFAULT_MODEL) if args.peer_python else "none"
    worst = 0.0
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs; us for each request and step, its ratio to vLLM's")
    print(f"{'':13} {'scheduler':9} {'us':>6} {'ratio':>6} {'requests':>8} {'preemptions':>11} {'cache hits':>10}  rounds")
    for pool, when in itertools.product(("roomy", "tight"), ("now", "ahead")):
        with ExitStack() as stack:
            children = {p: start(stack, python, p, model, args.running, pool, when) for p, python in pythons.items()}
            for child in children.values():
                steps(child, WARM_UP_STEPS)
            rounds = [{package: steps(child, args.steps) for package, child in children.items()} for _ in range(args.rounds)]
        medians = {package: statistics.median(each[package]["microseconds"] for each in rounds) for package in children}
        for package, middle in medians.items():
            last, figures = rounds[-1][package], " ".join(f"{each[package]['microseconds']:.2f}" for each in rounds)
            ratio = f"{medians['vllm_lite'] / middle:6.2f}" if package == "vllm" else ""
            row = f"{pool + ', ' + when:13} {package:9} {middle:6.2f} {ratio:>6} {last['requests']:8.1f}"
            print(f"{row} {last['preemptions']:11.0f} {last['hit_rate']:10.0%}  {figures}", flush=True)
        worst = max(worst, medians["vllm_lite"] / medians.get("vllm", float("inf")))
    if args.peer_python:
        print(f"worst ratio {worst:.2f} (bar {RATIO_BAR})")
    return 0 if worst <= RATIO_BAR else 1


if __name__ == "__main__":
    sys.exit(main())
