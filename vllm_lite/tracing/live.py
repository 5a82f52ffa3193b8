"""Engines that run now: which there are, their trace level, and their records while they are written.

Process: `vllm-lite trace attach` and `top`. Knows: control pages, /proc, the reader. Does not know: engines. An engine is found
by the control page that each of its processes has mapped, wherever its run directory is.
Mirrors: nothing in vLLM.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.control_page import CONTROL_FILE, ControlPage
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.journey.assembler import Assembler
from vllm_lite.tracing.journey.load import assembled
from vllm_lite.tracing.process import is_alive
from vllm_lite.tracing.reader import RunReader

POLL_BYTES = 8 << 20
KEEP_BAGS, KEEP_REQUESTS = 400, 200


class LiveRun(NamedTuple):
    """A run whose owner lives."""

    path: Path
    pid: int
    level: int
    started: float  # seconds since 1970

    @property
    def model(self) -> str:
        """What it serves, as the requests tell that were traced; "" where none was."""
        return next((request.accept.model for request in Tail(self.path).poll().requests), "")


def live_runs() -> list[LiveRun]:
    """All runs of this user's processes, by the owner's process id."""
    paths = {path for maps in Path("/proc").glob("[0-9]*/maps") for path in _mapped(maps)}
    return sorted(filter(None, map(_look, paths)), key=lambda run: run.pid)


def find_live_run(wanted: str | None) -> LiveRun:
    """The run of a process (the owner's id, or any of its engine's) or in a directory; where None is named, the only one.

    Raises VLLMValidationError where there is none that lives, or several.
    """
    if wanted is None:
        found = live_runs()
    elif wanted.isdecimal():
        mapped = _mapped(Path(f"/proc/{wanted}/maps"))
        found = [run for run in live_runs() if run.path in mapped or str(run.pid) == wanted]
    else:
        found = [run for run in [_look(Path(wanted))] if run]
    if len(found) == 1:
        return found[0]
    runs = found or live_runs()
    pids = [run.pid for run in runs]
    known = ", ".join(str(run.pid if pids.count(run.pid) == 1 else run.path) for run in runs)
    none = "no engine runs here; `vllm-lite trace run` in another terminal starts one"
    told = f"RUN must be the process id or run directory of an engine that runs here ({known or none})"
    told += "" if wanted is None else f"; got {wanted!r}"
    raise VLLMValidationError(told if runs or wanted else none, parameter="RUN", value=wanted)


@contextmanager
def switched(run_dir: Path, level: int | None = None, count: int | None = None) -> Iterator[None]:
    """The run at this level at least, or for `count` more requests only; afterwards, or when this process is gone, without.

    Each process of the engine sees it at its next step, bag or request. A run that is recorded anyway has no limit from here:
    its own records would lack the requests beyond it.
    """
    with closing(ControlPage.open(run_dir)) as page:
        lease = page.lease(level or 0, None if page.level else count)
        try:
            yield
        finally:
            page.release(lease)


class Tail:
    """A run that still grows, from the newest segment of each spool on; it remembers the last bags and requests only."""

    def __init__(self, run_dir: Path) -> None:
        self._reader = RunReader(run_dir, newest_only=True)
        self._assembler = Assembler()

    def poll(self) -> Run:
        """The run as far as it is known now."""
        for process, record in self._reader.poll(POLL_BYTES):
            self._assembler.feed(process, record)
        self._reader.look_alive()
        self._forget()
        return assembled(self._reader.run_dir, [self._reader], self._assembler)

    def _forget(self) -> None:
        assembler = self._assembler
        del assembler.bags[:-KEEP_BAGS]
        for step in list(assembler.steps.values())[:-KEEP_BAGS]:
            assembler.forget_step(step)
        over = [request for request in assembler.requests.values() if request.close is not None]
        for request in over[:-KEEP_REQUESTS]:
            assembler.forget_request(request)
        for span_id in list(assembler.calls)[:-KEEP_REQUESTS]:
            del assembler.calls[span_id]
        for request in assembler.requests.values():
            request.cut(KEEP_BAGS)


def _mapped(maps: Path) -> list[Path]:
    """The run directories whose control pages a process has mapped; none where one may not look."""
    try:
        lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    files = {line.split(maxsplit=5)[5] for line in lines if line.endswith(f"/{CONTROL_FILE}")}
    return [Path(name).parent for name in files]


def _look(run_dir: Path) -> LiveRun | None:
    try:
        with closing(ControlPage.open(run_dir)) as page:
            return LiveRun(run_dir, page.pid, page.level, page.anchor.wall_ns / 1e9) if is_alive(page.pid) else None
    except (OSError, ValueError):
        return None
