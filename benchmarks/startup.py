"""Cold process to first token, and the front end's import time.

    python benchmarks/startup.py [--vllm-python PYTHON] [--runs 5]

Wall time from the start of a fresh Python process to the first token of SmolLM2-135M-Instruct on its standard output: CPU,
bfloat16, eager. With --vllm-python (the interpreter of an environment that has vLLM) the same program runs vLLM too, the two
taking turns, and the ratio is held against the bar. One run of each beforehand is not counted: it fills the disk cache.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

from vllm_lite.config.model_files import DEFAULT_MODEL, resolve_model

RATIO_BAR = 0.35
IMPORT_BAR_S = 2.0
CHILD = Path(__file__).parent / "first_token.py"
IMPORTS = "from vllm_lite import AsyncEngineArgs, AsyncLLM, SamplingParams; AsyncLLM, AsyncEngineArgs, SamplingParams"


def first_token_seconds(python: str, package: str, model: Path) -> tuple[float, str]:
    """Seconds from the process's start to its first token, and the line it printed."""
    started = time.perf_counter()
    with subprocess.Popen(
        [python, str(CHILD), package, str(model)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        line = next((line for line in child.stdout if line.startswith("first token")), None)
        seconds = time.perf_counter() - started
        child.stdout.read()
    if line is None:
        raise SystemExit(f"{package} printed no token; run it by hand: {python} {CHILD} {package} {model}")
    return seconds, line.strip()


def import_seconds() -> float:
    """Seconds that a fresh interpreter takes to import the front end, less those of an interpreter that imports nothing."""

    def run(code: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - started

    return run(IMPORTS) - run("pass")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", help="the Python of an environment that has vLLM")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()

    model = resolve_model(DEFAULT_MODEL)
    engines = {"vllm_lite": sys.executable} | ({"vllm": options.vllm_python} if options.vllm_python else {})
    seconds: dict[str, list[float]] = {package: [] for package in engines}
    print(f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}, {DEFAULT_MODEL}, bfloat16")
    for turn in range(options.runs + 1):
        for package, python in engines.items():
            taken, line = first_token_seconds(python, package, model)
            print(f"{package:10} {'warm-up' if turn == 0 else f'run {turn}':8} {taken:6.2f} s   {line}")
            if turn > 0:
                seconds[package].append(taken)
    imports = statistics.median(import_seconds() for _ in range(options.runs))
    medians = {package: statistics.median(values) for package, values in seconds.items()}
    for package, median in medians.items():
        print(f"{package}: cold process to first token, median {median:.2f} s")
    met = imports <= IMPORT_BAR_S
    print(f"front end imports in {imports:.2f} s (bar {IMPORT_BAR_S} s)")
    if "vllm" in medians:
        ratio = medians["vllm_lite"] / medians["vllm"]
        met &= ratio <= RATIO_BAR
        print(f"ratio {ratio:.2f} (bar {RATIO_BAR})")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
