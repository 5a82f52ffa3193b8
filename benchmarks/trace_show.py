"""How soon a large run is on the screen: 10,000 requests of 100 tokens each, recorded at level 2.

    python benchmarks/trace_show.py [--requests 10000] [--tokens 100]

Measured in processes of their own, imports included: the run opened for its totals and its last 20 bags, and the command
`vllm-lite trace show` as a user calls it. CPU time is the figure to compare; wall time is what the machine made of it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.trace_load import MS, Load

BAR_S, BAR_MB = 2.0, 500.0
OPEN = """
import sys
from vllm_lite.tracing.journey import load_run
from vllm_lite.tracing.journey.times import station_times
run = load_run(sys.argv[1])
times = station_times(run)
tokens = sum(request.close.num_output_tokens for request in run.requests if request.close)
letters = [letter for bag in run.bags[-20:] for letter in bag.letters]
print(f"{len(run.requests):,} requests, {tokens:,} tokens, {len(run.bags):,} bags, {len(letters):,} letters in the last 20")
"""


def measure(name: str, command: list[str]) -> bool:
    """Run it, print what it cost; True where that is within the bars."""
    began = time.monotonic()
    done = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert done.stdout is not None
    first = done.stdout.readline()
    first_s = time.monotonic() - began
    out = first + done.stdout.read()
    _, status, used = os.wait4(done.pid, 0)
    done.returncode = os.waitstatus_to_exitcode(status)
    cpu, peak = used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3
    wall = time.monotonic() - began
    print(f"{name}: {cpu:.2f} s of CPU, {wall:.2f} s, first line after {first_s:.2f} s, {peak:.0f} MB, exit {done.returncode}")
    print(f"    {out.splitlines()[-1] if out else ''}")
    return cpu <= BAR_S and peak <= BAR_MB and done.returncode == 0


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
        opened = measure("opened for totals and 20 bags", [sys.executable, "-c", OPEN, str(run_dir)])
        command = [sys.executable, "-m", "vllm_lite.entrypoints.cli.main", "trace", "show", str(run_dir)]
        shown = measure("vllm-lite trace show", command)
    return int(not (opened and shown))


if __name__ == "__main__":
    sys.exit(main())
