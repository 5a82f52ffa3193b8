"""Everything that only a GPU can answer, in one run of under six minutes: is it right, and how near to the hardware is it?

    python benchmarks/gpu_check.py --out RESULTS [--wheels WHEELS]      on a machine with a CUDA GPU
    python benchmarks/gpu_check.py --dry-run                            anywhere: tiny sizes on the CPU, figures mean nothing

It needs torch, triton and transformers as they come with a CUDA image; nothing is fetched and vllm-lite need not be installed.
What such an image lacks can be carried as wheels. Where there is a network:

    python -m pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_28_x86_64 \\
        --platform manylinux2014_x86_64 -d WHEELS msgspec pyzmq opentelemetry-api opentelemetry-sdk \\
        opentelemetry-semantic-conventions

and WHEELS goes along; `--wheels WHEELS` installs them offline into a folder of this run. Each section is a process of its own,
with a limit: one that fails, hangs or upsets the GPU leaves the others alone. Without wheels only `machine` runs.
RESULTS gets `gpu_check.json` (rewritten after each section), the same as a table in `gpu_check.txt`, and the records of a
traced run in `trace.tar.gz`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).parents[1]
TOTAL_S = 350
# In this order: what others lean on first, what may take long last. The seconds that each may take.
LIMITS = {
    "machine": 40,
    "kernels": 70,
    "tokens": 90,
    "steps": 80,
    "attention": 80,
    "end_to_end": 90,
    "trace": 50,
    "compiled": 180,
}


def run_child(command: list[str], environment: dict[str, str], limit_s: float, result: Path) -> dict[str, Any]:
    """What the command wrote to `result`, or why it did not. Its whole process group ends with it."""
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code: int | None = child.wait(timeout=max(limit_s, 0))
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(child.pid, 9)
            child.wait()
        log.seek(0)
        tail = log.read()[-2000:]
    found: dict[str, Any] = {"seconds": round(time.perf_counter() - started, 1)}
    if result.exists():
        return found | json.loads(result.read_text())
    reason = f"not done within {limit_s:.0f} s" if code is None else f"exit code {code} and no result"
    return found | {"error": reason, "output": tail}


def run_section(name: str, dry: bool, work: Path) -> None:
    """In the child: run one section and write its result, or its traceback, to a file."""
    try:
        from benchmarks import gpu_sections

        result = getattr(gpu_sections, name)(gpu_sections.DRY if dry else gpu_sections.FULL, work)
    except BaseException as error:
        result = {"error": f"{type(error).__name__}: {error}", "output": traceback.format_exc()[-2000:]}
    (work / f"{name}.json").write_text(json.dumps(result, indent=1))


def child_environment(dry: bool, wheels: Path | None, work: Path) -> dict[str, str]:
    """This process's, with the repository and the carried wheels on the path."""
    path = [str(ROOT)]
    if wheels is not None:
        files = [str(wheel) for wheel in sorted(wheels.glob("*.whl"))]
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(work / "site")]
        subprocess.run([*install, *files], check=True)
        path.append(str(work / "site"))
    path += filter(None, [os.environ.get("PYTHONPATH")])
    interpret = {"TRITON_INTERPRET": "1"} if dry else {}
    return os.environ | {"PYTHONPATH": os.pathsep.join(path)} | interpret


def run_all(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Every section in a child of its own, until the time is up; what is known so far is always on the disk."""
    environment = child_environment(options.dry_run, options.wheels, work)
    end, results = time.monotonic() + options.limit, {}
    for name in options.sections:
        limit = min(LIMITS[name], end - time.monotonic())
        print(f"{name} (at most {max(limit, 0):.0f} s) ...", flush=True)
        command = [sys.executable, __file__, "--section", name, "--out", str(work)]
        command += ["--dry-run"] if options.dry_run else []
        result = work / f"{name}.json"
        results[name] = run_child(command, environment, limit, result) if limit > 5 else {"error": "skipped: the time is up"}
        print(f"  {results[name].get('error', 'done')} after {results[name].get('seconds', 0)} s", flush=True)
        (options.out / "gpu_check.json").write_text(json.dumps(results, indent=1))
    return results


def table(results: dict[str, Any]) -> Table:
    """Each figure of each section on a line; those with a bar say whether it is met."""
    shown = Table("section", "what", "value", "bar", "")
    for name, result in results.items():
        if "error" in result:
            shown.add_row(name, Text(result["error"][:300]), "", "", "[red]failed")
        for what, value, bar, met in result.get("bars", []):
            shown.add_row(name, what, figure(value), figure(bar), "[green]met" if met else "[red]missed")
        for what, value in flat({key: result[key] for key in result if key not in ("bars", "error", "output")}):
            shown.add_row(name, what, figure(value), "", "")
        shown.add_section()
    return shown


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """A nested result as (path, figure)."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{name} {key}".strip())
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from flat(inner, f"{name} {index}")
    else:
        yield name, value


def figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu_check"), help="the folder for results")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels to install first")
    parser.add_argument("--sections", type=lambda text: text.split(","), default=list(LIMITS), help="some, with commas between")
    parser.add_argument("--limit", type=float, default=TOTAL_S, help="seconds for everything")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--section", help=argparse.SUPPRESS)  # this process is a child and runs one section
    options = parser.parse_args()
    if unknown := [name for name in options.sections if name not in LIMITS]:
        parser.error(f"no section is called {unknown[0]!r}; there are {', '.join(LIMITS)}")
    if options.section:
        run_section(options.section, options.dry_run, options.out)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        results = run_all(options, Path(folder))
        if (run := Path(folder) / "trace").is_dir():
            shutil.make_archive(str(options.out / "trace"), "gztar", run)
    for console in (Console(), Console(file=(options.out / "gpu_check.txt").open("w"), width=160)):
        console.print(table(results))
    bars = [bar for result in results.values() for bar in result.get("bars", [])]
    return 0 if all(met for *_, met in bars) and not any("error" in result for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
