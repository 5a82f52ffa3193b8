"""What tracing costs the front end for each token: levels 0, 1 and 3 take turns, on the same bags as benchmarks/frontend.py.

    python benchmarks/trace_overhead.py

The difference of each round to the same round without tracing; medians. Every request is sampled and every bag's step traced.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics

from frontend import measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    kinds = {"off": (0, False), "level 1": (1, False), "level 3": (3, False)}
    figures = asyncio.run(measure(kinds, args.rounds, args.requests, args.steps))
    off = figures["off"]
    for name, values in figures.items():
        added = statistics.median(value - base for value, base in zip(values, off, strict=True))
        print(f"{name:8} {statistics.median(values):6.2f} us/token   {added:+.2f}   best {min(values):.2f}")


if __name__ == "__main__":
    main()
