"""The whole engine on a CPU: AsyncLLM against vLLM's AsyncLLM and against transformers' generate.

    python benchmarks/engine.py [--vllm-python PYTHON] [--json FILE] [--quick]

SmolLM2-135M-Instruct, greedy, 64 prompt tokens and 32 generated, for 1, 8 and 32 requests at once; then 24 mixed requests (10
to 100 tokens in, 5 to 60 out), which generate must pad and keep until the longest ends. Each engine is started once and stays
up; they take turns, with new prompts in each run, all of them on one and the same core with OMP_NUM_THREADS=1, so that no
second thread or process hides work. Figures are medians; one run of each beforehand is not counted. Wall time decides; the CPU
time of all processes of an engine stands beside it. vLLM needs --vllm-python, the interpreter of an environment that has it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vllm_lite.config.model_files import DEFAULT_MODEL, resolve_model

# vllm-lite's tokens per second over the other's, at least. transformers is held to its bars in bfloat16 alone.
VLLM_BARS = {"bfloat16": 0.80, "float32": 0.90}
GENERATE_BARS = {"equal": 1.4, "mixed": 1.8}
BUSY = 1.0  # load average beyond which others would be measured, too
CHILD = Path(__file__).parent / "engine_child.py"
Batch = list[tuple[list[int], int]]


class Engine:
    """A child process with one engine."""

    def __init__(self, python: str, kind: str, model: Path, dtype: str) -> None:
        self.kind = kind
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed with the engine)
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [python, str(CHILD), kind, str(model), dtype],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def answer(self) -> dict[str, float]:
        """The child's next line. SystemExit with the end of its log where there is none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise SystemExit(f"{self.kind} ended:\n{self._log.read()[-3000:]}")
        found: dict[str, float] = json.loads(line)
        return found

    def run(self, batch: Batch) -> dict[str, float]:
        """Seconds and tokens of one batch."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(batch) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        """End of input is the child's end."""
        self._process.communicate()
        self._log.close()


@contextmanager
def engines_up(pythons: dict[str, str], model: Path, dtype: str) -> Iterator[list[Engine]]:
    """One engine of each kind, all up."""
    with ExitStack() as stack:
        engines = []
        for kind, python in pythons.items():
            engines.append(Engine(python, kind, model, dtype))
            stack.callback(engines[-1].close)
            engines[-1].answer()
        yield engines


def make_batch(case: str, run: int, vocab_size: int) -> Batch:
    """The requests of a case: "mixed", or how many of equal length. No two runs share a prompt, so no prefix is cached."""
    rng = random.Random(f"{case}, run {run}")
    mixed = [(rng.randint(10, 100), rng.randint(5, 60)) for _ in range(24)]
    sizes = mixed if case == "mixed" else [(64, 32)] * int(case)
    return [([rng.randrange(vocab_size) for _ in range(prompt)], count) for prompt, count in sizes]


def measure(engines: list[Engine], cases: list[str], runs: int, vocab_size: int) -> list[dict[str, Any]]:
    """One row for each case and engine: medians, and each run's tokens per second."""
    rows = []
    for case in cases:
        found: dict[str, list[dict[str, float]]] = {engine.kind: [] for engine in engines}
        for number in range(runs + 1):
            for engine in engines:
                figures = engine.run(make_batch(case, number, vocab_size))
                if number:
                    found[engine.kind].append(figures)
        for kind, figures in found.items():
            rows.append(
                {
                    "case": case,
                    "engine": kind,
                    "tokens_per_s": statistics.median(each["tokens"] / each["wall"] for each in figures),
                    "cpu_ms_per_token": statistics.median(each["cpu"] / each["tokens"] * 1000 for each in figures),
                    "runs": [round(each["tokens"] / each["wall"], 1) for each in figures],
                }
            )
    return rows


def compare(rows: list[dict[str, Any]], dtype: str) -> None:
    """Note in each of the others' rows how many times as fast vllm-lite is, and the bar."""
    ours = {row["case"]: row for row in rows if row["engine"] == "vllm_lite"}
    for row in rows:
        if row["engine"] == "vllm_lite":
            continue
        own = ours[row["case"]]
        row["ratio"] = own["tokens_per_s"] / row["tokens_per_s"]
        row["cpu_ratio"] = row["cpu_ms_per_token"] / own["cpu_ms_per_token"]
        if row["engine"] == "vllm":
            row["bar"] = VLLM_BARS[dtype] if row["case"] != "mixed" else None
        else:
            row["bar"] = GENERATE_BARS["mixed" if row["case"] == "mixed" else "equal"] if dtype == "bfloat16" else None


def show(rows: list[dict[str, Any]], dtype: str) -> None:
    table = Table("requests", "engine", title=dtype, title_justify="left")
    for heading in ("tokens/s", "CPU ms/token", "ours / theirs", "by CPU", "bar", "runs, tokens/s"):
        table.add_column(heading, justify="left" if heading.startswith("runs") else "right")
    for row in rows:
        cells = [f"{row['tokens_per_s']:.1f}", f"{row['cpu_ms_per_token']:.2f}", "", "", ""]
        if "ratio" in row:
            missed = row["bar"] is not None and row["ratio"] < row["bar"]
            bar = "" if row["bar"] is None else f"{row['bar']:.2f}{' missed' if missed else ''}"
            cells[2:] = [f"{row['ratio']:.2f}", f"{row['cpu_ratio']:.2f}", bar]
        table.add_row(row["case"], row["engine"], *cells, " ".join(map(str, row["runs"])))
    Console(width=130).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", help="the Python of an environment that has vLLM")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtypes", nargs="+", choices=list(VLLM_BARS), default=list(VLLM_BARS))
    parser.add_argument("--cases", nargs="+", default=["1", "8", "32", "mixed"], help="numbers of equal requests, or 'mixed'")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two runs of each in bfloat16")
    parser.add_argument("--no-generate", action="store_true", help="leave transformers' generate out")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("--force", action="store_true", help="measure on a busy machine all the same")
    options = parser.parse_args()
    if options.quick:
        options.dtypes, options.runs = ["bfloat16"], 2

    load = os.getloadavg()[0]
    if load > BUSY and not options.force:
        print(
            f"the load average is {load:.1f}: other programs would be measured, too; wait until it is below {BUSY}, or --force"
        )
        return 2
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # children inherit it
    pythons = {"vllm_lite": sys.executable}
    if options.vllm_python:
        pythons["vllm"] = options.vllm_python
    if not options.no_generate:
        pythons["generate"] = sys.executable
    model = resolve_model(options.model)
    vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
    machine = f"{platform.machine()}, one of {os.cpu_count()} CPUs, Python {platform.python_version()}"
    print(f"{machine}, {options.model}, load average {load:.1f}")
    results: dict[str, list[dict[str, Any]]] = {}
    for dtype in options.dtypes:
        with engines_up(pythons, model, dtype) as engines:
            rows = results[dtype] = measure(engines, options.cases, options.runs, vocab_size)
        compare(rows, dtype)
        show(rows, dtype)
    if options.json is not None:
        options.json.write_text(
            json.dumps({"machine": machine, "load": load, "runs": options.runs, "dtypes": results}, indent=1)
        )
    return int(any(row["ratio"] < row["bar"] for rows in results.values() for row in rows if row.get("bar") is not None))


if __name__ == "__main__":
    sys.exit(main())
