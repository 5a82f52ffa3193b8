"""A whole run from its directory.

Process: readers. Knows: reader and assembler. Does not know: who asks.
Mirrors: nothing in vLLM.
"""

import gc
from pathlib import Path

from vllm_lite.tracing.journey.assembler import Assembler
from vllm_lite.tracing.journey.model import Run
from vllm_lite.tracing.reader import RunReader


def load_run(run_dir: str | Path, *beside: Path) -> Run:
    """Read every spool of `run_dir`, and of other engines' runs `beside` it as if they were of the same.

    Raises FileNotFoundError where there is no such folder, or no spool that can be read.
    """
    path = Path(run_dir)
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is no folder; `vllm-lite trace run --out DIR` records a run in one")
    readers, assembler = [RunReader(folder) for folder in (path, *beside)], Assembler()
    collecting = gc.isenabled()
    gc.disable()  # nothing of a run is garbage while it is read, and looking for some takes as long as reading does
    try:
        for reader in readers:
            for process, record in reader.poll():
                assembler.feed(process, record)
            reader.look_alive()
    finally:
        if collecting:
            gc.enable()
    if not any(reader.segments for reader in readers):
        raise FileNotFoundError(f"{path} holds no spools (*.vlt): nothing was traced there, or they were exported and removed")
    if not any(reader.processes for reader in readers):
        raise FileNotFoundError(f"{path} holds no spool that can be read: the files *.vlt there are something else, or broken")
    assembler.finish()
    return assembled(path, readers, assembler)


def assembled(path: Path, readers: list[RunReader], assembler: Assembler) -> Run:
    """What readers and assembler now hold, in the order of time."""
    return Run(
        path=path,
        processes=[process for reader in readers for process in reader.processes.values()],
        requests=sorted(assembler.requests.values(), key=lambda request: request.process.wall(request.accept.t)),
        steps=sorted(assembler.steps.values(), key=lambda step: step.process.wall(step.schedule.t0)),
        bags=sorted(assembler.bags, key=lambda bag: bag.process.wall(bag.sort.t_received)),
        strays=assembler.strays,
        phases=sorted(assembler.phases, key=lambda item: item[0].wall(item[1].t0)),
        deaths=assembler.deaths,
        dropped=assembler.dropped,
        calls=list(assembler.calls.values()),
        torn=sum(reader.torn for reader in readers),
        unknown=sum(reader.unknown for reader in readers),
        unclaimed=assembler.unclaimed,
    )
