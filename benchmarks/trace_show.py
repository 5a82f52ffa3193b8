"""How soon a large run is on the screen: 10,000 requests of 100 tokens each, recorded at level 2.

    python benchmarks/trace_show.py [--requests 10000] [--tokens 100]

Measured in processes of their own, imports included: `vllm-lite trace show` as a user calls it, its slowest requests, and the
rows that `vllm_lite.trace.load` gives a notebook. The bar is on wall time; CPU time tells how much of it was the machine's.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.trace_load import MS, Load

BAR_S, BAR_MB = 2.0, 500.0
SCREEN = 24  # lines
ROWS = "import sys, vllm_lite.trace; print(vllm_lite.trace.load(sys.argv[1]))"


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, to a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(name: str, command: list[str]) -> bool:
    """Run it, print what it cost; True where that is within the bars."""
    began = time.monotonic()
    done = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert done.stdout is not None
    first = "".join(itertools.islice(done.stdout, SCREEN))
    first_s, first_cpu = time.monotonic() - began, cpu_seconds(done.pid)
    out = first + done.stdout.read()
    _, status, used = os.wait4(done.pid, 0)
    done.returncode = os.waitstatus_to_exitcode(status)
    cpu, peak = used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3
    wall = time.monotonic() - began
    print(f"{name}: first screen after {first_cpu:.2f} s of CPU, {first_s:.2f} s of time; all after {cpu:.2f} and {wall:.2f} s")
    print(f"    {peak:.0f} MB, exit {done.returncode}")
    print(f"    {out.splitlines()[-1] if out else ''}")
    return first_s <= BAR_S and peak <= BAR_MB and done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        run_dir.mkdir()
        load, t = Load(run_dir, 2, tokens=options.tokens, total=options.requests), 10**12
        while load.step(t):
            t += 20 * MS
        load.close()
        size = sum(path.stat().st_size for path in run_dir.iterdir())
        print(f"{load.started:,} requests, {load.written:,} tokens, {load.steps:,} steps, {size / 1e6:.0f} MB of spools")
        command = [sys.executable, "-m", "vllm_lite.entrypoints.cli.main", "trace", "show", str(run_dir)]
        shown = measure("vllm-lite trace show", command)
        measure("vllm-lite trace show --slow 3", [*command, "--slow", "3"])
        measure("vllm_lite.trace.load and its rows", [sys.executable, "-c", ROWS, str(run_dir)])
    return int(not shown)


if __name__ == "__main__":
    sys.exit(main())
