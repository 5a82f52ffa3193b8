"""Recorded runs for notebooks and scripts: `load(DIR)`, and `with record() as run:` around any use of an engine.

Process: whichever reads. Knows: the journey model, and (inside functions) the console's views. Does not know: engine classes.
Requests, steps and bags are plain rows with times in seconds; each row has its `journey` with every record in it.
Mirrors: nothing in vLLM.
"""

import atexit
import dataclasses
import glob
import importlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from vllm_lite.config.checks import check_int, refuse
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.control_page import CONTROL_FILE, ControlPage
from vllm_lite.tracing.journey import Bag, RequestJourney, Run, StepJourney, load_run
from vllm_lite.tracing.live import switched
from vllm_lite.tracing.spans.stay import queue_time_ns

__all__ = ["BagRow", "RequestRow", "StepRow", "TracedRun", "load", "record"]

SETTLE_S = 1.0  # how long the engine core may take to write down what it heard last
HTML_STYLE = "font: 12px/1.25 monospace; white-space: pre; overflow-x: auto"  # a notebook's own would bend the columns


class _Row:
    """Prints and becomes a row of a frame without the journey that it was made of."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.columns().items())})"

    def columns(self) -> dict[str, Any]:
        """Its plain values by name."""
        return {name: value for name, value in vars(self).items() if name != "journey"}


class RequestRow(_Row):
    """One request. Times are seconds, from its arrival where they are moments; None where it never came so far."""

    def __init__(self, request: RequestJourney) -> None:
        close, start = request.close, request.accept.t
        first = close.t_first_token if close else None
        self.id = request.accept.external_id
        self.outcome = close.outcome if close else None
        self.finish_reason = close.finish_reasons[0] if close and close.finish_reasons else None
        self.prompt_tokens = close.num_prompt_tokens if close else None
        self.cached_tokens = close.num_cached_tokens if close else None
        self.output_tokens = close.num_output_tokens if close else None
        self.queued_s = sum(map(queue_time_ns, request.stays)) / 1e9
        self.first_token_s = None if first is None else (first - start) / 1e9
        self.total_s = None if close is None else (close.t - start) / 1e9
        self.steps = sum(spell.steps.total for stay in request.stays for spell in stay.spells)
        self.preemptions = sum(len(stay.spells) - 1 for stay in request.stays)
        self.puts = close.puts if close else None
        self.staples = close.staples if close else None
        self.takes = close.takes if close else None
        self.left = close.left if close else None
        self.late = len(request.late)
        self.trace_id = request.accept.trace_id
        self.journey = request


class StepRow(_Row):
    """One step of an engine core. `start_s` is seconds after the run's first request arrived, at `zero` (wall nanoseconds)."""

    def __init__(self, step: StepJourney, zero: int) -> None:
        plan, execute = step.schedule, step.execute
        self.index = plan.step
        self.start_s = (step.process.wall(plan.t0) - zero) / 1e9
        self.schedule_s = (plan.t1 - plan.t0) / 1e9
        self.execute_s = None if execute is None else (execute.t1 - execute.t0) / 1e9
        self.requests = plan.num_requests
        self.prefills = plan.num_prefill
        self.tokens = plan.num_tokens
        self.running = plan.num_running
        self.waiting = plan.num_waiting
        self.kv_usage = plan.kv_usage
        self.preempted = len(plan.preempted)
        self.journey = step


class BagRow(_Row):
    """One bag as the front end sorted it. `start_s` is seconds after the run's first request arrived, at `zero`."""

    def __init__(self, bag: Bag, zero: int) -> None:
        sort, received = bag.sort, bag.process.wall(bag.sort.t_received)
        sent = bag.step.process.wall(bag.send.t1) if bag.step and bag.send else None
        self.number = sort.bag
        self.step = bag.step.index if bag.step else None
        self.start_s = (received - zero) / 1e9
        self.sort_s = (sort.t_done - sort.t_received) / 1e9
        self.wire_s = None if sent is None else max(received - sent, 0) / 1e9
        self.letters = sort.num_outputs
        self.tokens = sort.num_tokens
        self.put = sort.num_put
        self.stapled = sort.num_stapled
        self.kept_back = sort.num_kept_back
        self.late = len(sort.late)
        self.bytes = sort.body_size
        self.journey = bag


class TracedRun:
    """A run's requests, steps and bags. In a notebook it shows itself as mailroom and waterfall.

    `beside` are the run directories of engines that were recorded together with the first one.
    """

    def __init__(self, path: Path, since: int = 0) -> None:
        self.path = path
        self.beside: list[Path] = []
        self._since = since  # monotonic ns: requests that arrived before do not count,
        self._until: int | None = None  # nor those that arrived later than this

    @cached_property
    def journey(self) -> Run:
        """The run with everything in it, read when it is first asked for."""
        return self.read()

    def read(self) -> Run:
        """The run as far as it is written down now."""
        run = load_run(self.path, *self.beside)
        requests = [request for request in run.requests if self._counts(request.accept.t)]
        steps = [step for step in run.steps if self._counts(step.schedule.t0)]
        bags = [bag for bag in run.bags if self._counts(bag.sort.t_received)]
        return dataclasses.replace(run, requests=requests, steps=steps, bags=bags)

    def _counts(self, t: int) -> bool:
        return self._since <= t and (self._until is None or t <= self._until)

    @cached_property
    def requests(self) -> list[RequestRow]:
        """In the order of their arrival."""
        return [RequestRow(request) for request in self.journey.requests]

    @cached_property
    def steps(self) -> list[StepRow]:
        """In the order in which they began."""
        return [StepRow(step, self._zero) for step in self.journey.steps]

    @cached_property
    def bags(self) -> list[BagRow]:
        """In the order in which they came."""
        return [BagRow(bag, self._zero) for bag in self.journey.bags]

    def frames(self) -> dict[str, Any]:
        """ "requests", "steps" and "bags" as pandas DataFrames. Raises VLLMValidationError where pandas is not installed."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            told = "frames need pandas, which is not installed; `pip install pandas`, or use the lists requests, steps and bags"
            raise VLLMValidationError(told, parameter="frames", value=None) from None
        rows: dict[str, Sequence[_Row]] = {"requests": self.requests, "steps": self.steps, "bags": self.bags}
        return {name: pandas.DataFrame([row.columns() for row in of_one_kind]) for name, of_one_kind in rows.items()}

    @cached_property
    def _zero(self) -> int:
        return min((request.process.wall(request.accept.t) for request in self.journey.requests), default=0)

    def __repr__(self) -> str:
        return f"<traced run {self.path}: {len(self.requests)} requests, {len(self.steps)} steps, {len(self.bags)} bags>"

    def _repr_html_(self) -> str:
        """The mailroom, and the first request's waterfall, as the terminal shows them."""
        from vllm_lite.console.mailroom import Mailroom
        from vllm_lite.console.theme import new_paper
        from vllm_lite.console.timeline import Waterfall

        screen = new_paper()
        screen.print(Mailroom(self.journey))
        for request in self.journey.requests[:1]:
            screen.print()
            screen.print(Waterfall(request, 0))
        return screen.export_html(inline_styles=True, code_format=f'<pre style="{HTML_STYLE}">{{code}}</pre>')


def load(run_dir: str | Path) -> TracedRun:
    """The run that was recorded in `run_dir`. Raises FileNotFoundError where nothing was."""
    run = TracedRun(Path(run_dir))
    _ = run.journey
    return run


@contextmanager
def record(engine: object | None = None, *, level: int = 3, out: str | Path | None = None) -> Iterator[TracedRun]:
    """Record what happens in the block; afterwards the run that it gives can be looked at.

    Without `engine`, it is whichever the block builds; its spools go to `out` (a second one's beside it, to `out`.1), else to
    a folder that stays until the process ends. With an AsyncLLM or LLM that exists already, its level is raised for the block,
    and only requests of the block count. Raises VLLMValidationError for a level other than 1 to 3, an engine that is none or is
    gone, and an `out` that holds a run.
    """
    check_int("level", level, 1, 3)
    if engine is None:
        if out is None:
            passing = tempfile.mkdtemp(prefix="vllm-lite-record-")
            atexit.register(shutil.rmtree, passing, ignore_errors=True)
            out = Path(passing, "run")
        yield from _around_new_engines(level, Path(out))
        return
    run = TracedRun(_run_dir_of(engine), time.monotonic_ns())
    with switched(run.path, level):
        try:
            yield run
        finally:
            run._until = time.monotonic_ns()
        _settle(run)


def _around_new_engines(level: int, folder: Path) -> Iterator[TracedRun]:
    if (folder / CONTROL_FILE).exists():  # the engine would take another one
        raise refuse("out", str(folder), "a folder that holds no run yet")
    ours = {"VLLM_LITE_TRACE_DIR": str(folder), "VLLM_LITE_TRACE_LEVEL": str(level)}
    before = {name: os.environ.get(name) for name in ours}
    there_before = _runs_beside(folder)
    os.environ.update(ours)
    run = TracedRun(folder)
    try:
        yield run
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    run.beside = [path for path in _runs_beside(folder) if path not in there_before]
    _settle(run)
    for path in (folder, *run.beside):  # an engine that lives on does so unrecorded
        if (path / CONTROL_FILE).exists():
            with closing(ControlPage.open(path)) as page:
                page.level = 0


def _runs_beside(folder: Path) -> list[Path]:
    """Those of the engines that found `folder` taken."""
    return [path.parent for path in folder.parent.glob(f"{glob.escape(folder.name)}.*/{CONTROL_FILE}")]


def _settle(run: TracedRun) -> None:
    """Wait until the engine core has written down how the requests ended that the front end is done with."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        try:
            done = [request for request in run.read().requests if request.close]
        except FileNotFoundError:  # nothing was recorded
            return
        if all(stay.t_end is not None or stay.process.died for request in done for stay in request.stays):
            return
        time.sleep(0.02)


def _run_dir_of(engine: object) -> Path:
    for holder in (engine, getattr(engine, "llm_engine", None)):
        config = getattr(holder, "vllm_config", None)
        folder = config and config.observability_config.trace_dir
        if folder and (Path(folder) / CONTROL_FILE).exists():
            return Path(folder)
    raise VLLMValidationError(
        "engine is no engine with a run directory; use an AsyncLLM or LLM that runs", parameter="engine", value=engine
    )
