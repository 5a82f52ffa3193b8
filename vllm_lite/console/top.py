"""The top view: a running engine's last bags, and how busy it is.

Process: whichever prints. Knows: the journey model, the screen. Does not know: files, engines.
`python -m vllm_lite.console.top` shows one frame.
Mirrors: nothing in vLLM.
"""

import dataclasses
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from vllm_lite.console.figures import SECOND
from vllm_lite.console.mailroom import Mailroom
from vllm_lite.console.theme import STRONG, Screen
from vllm_lite.tracing.journey import Run

WINDOW_S = 2
BAGS = 120  # looked at, more than a screen holds
AROUND = 10  # lines of a screen that are no bags
LEAST = 3


class Top:
    """Draws frame after frame; a request keeps its letter from one to the next."""

    def __init__(self, name: str) -> None:
        self.name, self._model, self._run, self._now = name, "", Run(Path()), 0
        self._numbers: dict[str, int] = {}

    def look(self, run: Run, now: int) -> None:
        """The run as it is at `now`, monotonic nanoseconds."""
        for request in run.requests:
            self._numbers.setdefault(request.accept.span_id, len(self._numbers))
            self._model = request.accept.model
        bags = run.bags[-BAGS:]
        start = bags[0].process.wall(bags[0].sort.t_received) if bags else 0
        recent = [r for r in run.requests if r.close is None or r.process.wall(r.close.t) >= start]
        steps = [step for step in run.steps if step.process.wall(step.schedule.t0) >= start]
        self._run, self._now = dataclasses.replace(run, bags=bags, steps=steps, requests=recent), now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """One frame, as high as the screen at most."""
        screen = Screen.of(console, options)
        yield screen.title("top", self.name, screen.printable(self._model))
        yield screen.fit(self._busy(self._run))
        view = Mailroom(self._run, None, [self._numbers[request.accept.span_id] for request in self._run.requests])
        view.rows = view.rows[-max(LEAST, options.size.height - AROUND) :]
        yield view

    def _busy(self, run: Run) -> Text:
        """What goes on, and the rates of the last seconds."""
        since = self._now - WINDOW_S * SECOND
        bags = [bag for bag in run.bags if bag.sort.t_received >= since]
        steps = sum(step.schedule.t0 >= since for step in run.steps)
        tokens = sum(bag.sort.num_tokens for bag in bags)
        line = Text().append(f"{tokens / WINDOW_S:,.0f} tokens and {steps / WINDOW_S:,.0f} steps a second", STRONG)
        if steps:
            plans = {step.process: step.schedule for step in run.steps}.values()  # the last of each engine core
            running, waiting = sum(plan.num_running for plan in plans), sum(plan.num_waiting for plan in plans)
            line.append(f", {running} running, {waiting} waiting, KV cache {max(plan.kv_usage for plan in plans):.1%}")
        return line


if __name__ == "__main__":
    from vllm_lite.console.demo import canned_run, show

    demo, top = canned_run(), Top("a canned run")
    top.look(demo, demo.bags[-1].sort.t_received)
    show(top)
