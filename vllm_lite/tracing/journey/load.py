"""A whole run from its directory.

Process: readers. Knows: reader and assembler. Does not know: who asks.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vllm_lite.tracing.journey.assembler import Assembler
from vllm_lite.tracing.journey.model import Run
from vllm_lite.tracing.reader import RunReader


def load_run(run_dir: str | Path) -> Run:
    """Read every spool of `run_dir`. Raises FileNotFoundError where there is no such folder or it has no spool."""
    path = Path(run_dir)
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is no folder; `vllm-lite trace run --out DIR` records a run in one")
    reader, assembler = RunReader(path), Assembler()
    with _no_collections():
        for process, record in reader.poll():
            assembler.feed(process, record)
    if reader.spools and not reader.processes:
        raise FileNotFoundError(f"{path} holds no spool that can be read: the files *.vlt there are something else, or broken")
    if not reader.spools:
        raise FileNotFoundError(f"{path} holds no spools (*.vlt): nothing was traced there, or they were exported and removed")
    reader.look_alive()
    assembler.finish()
    return assembled(path, reader, assembler)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Nothing of a run is garbage while it is read, and looking for some takes as long as reading does."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def assembled(path: Path, reader: RunReader, assembler: Assembler) -> Run:
    """What reader and assembler now hold, in the order of time."""
    return Run(
        path=path,
        processes=list(reader.processes.values()),
        requests=sorted(assembler.requests.values(), key=lambda request: request.process.wall(request.accept.t)),
        steps=sorted(assembler.steps.values(), key=lambda step: step.process.wall(step.schedule.t0)),
        bags=sorted(assembler.bags, key=lambda bag: bag.process.wall(bag.sort.t_received)),
        strays=assembler.strays,
        phases=sorted(assembler.phases, key=lambda item: item[0].wall(item[1].t0)),
        deaths=assembler.deaths,
        dropped=assembler.dropped,
        calls=list(assembler.calls.values()),
        torn=reader.torn,
        unknown=reader.unknown,
        unclaimed=assembler.unclaimed,
    )
