"""`vllm-lite trace run --demo`: one engine, four acts, each with the picture that it is about.

Process: front end. Knows: the acts. Does not know: how an engine or a view works.
Mirrors: nothing in vLLM.
"""

from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from rich.console import Console, RenderableType
from rich.text import Text

from vllm_lite.console.bag import BagView
from vllm_lite.console.mailroom import Mailroom
from vllm_lite.console.theme import Screen, request_name
from vllm_lite.console.timeline import Overview, Waterfall
from vllm_lite.engine_args import AsyncEngineArgs
from vllm_lite.entrypoints.cli import views
from vllm_lite.entrypoints.cli.callers import Call, read_texts
from vllm_lite.entrypoints.cli.session import Session
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams
from vllm_lite.tracing.journey import Run

Picture = Callable[[Run, int], RenderableType]  # of an act's part of the run, and the number of its first request


class Ask(NamedTuple):
    """One caller of an act."""

    prompt: str
    max_tokens: int
    stop: str | None = None
    steps_away: int = 0  # it looks away for as long as so many steps take


class Act(NamedTuple):
    """What happens, what to look at, and the views that show it."""

    name: str
    caption: str
    asks: tuple[Ask, ...]
    pictures: tuple[str, ...]  # of PICTURES


PICTURES: dict[str, Picture] = {
    "mailroom": lambda run, first: Mailroom(run, numbers=range(first, first + len(run.requests)), texts=read_texts(run.path)),
    "waterfall": lambda run, first: Waterfall(run.requests[0], first),
    "overview": lambda run, first: Overview(run, first=first),
    "middle bag": lambda run, first: BagView(run, run.bags[len(run.bags) // 2].sort.bag, first),
}
ACTS = (
    Act(
        "an ordinary answer",
        "Each step of the engine fills one bag; the clerk puts its letter into A's mailbox, and A takes it at once.",
        (Ask("What is the capital of France?", 16),),
        ("mailroom", "waterfall", "middle bag"),
    ),
    Act(
        "a stop string",
        "Only the clerk sees text. It finds the stop string, cuts it off and tells the engine core. That may have made one "
        "token more, for which nobody waits: its bag comes without a letter.",
        (Ask("List the days of the week.", 48, stop="Wednesday"),),
        ("mailroom",),
    ),
    Act(
        "a slow reader",
        "C takes a letter, then looks away. Letters that come meanwhile are stapled to the one in its mailbox: +1, +2, ...",
        (Ask("Why is the sky blue?", 24, steps_away=6),),
        ("mailroom", "waterfall"),
    ),
    Act(
        "two long answers at once",
        "Once both prompts are computed, one step makes a token for each, and one bag carries both letters.",
        (Ask("What does a postman do?", 64), Ask("Who was Albert Einstein?", 64)),
        ("mailroom", "overview"),
    ),
)


def play_demo(console: Console, engine_args: AsyncEngineArgs) -> int:
    """Play the acts and the totals; the exit code."""
    screen = Screen.of(console)
    first, step_s = 0, 0.0
    with Session(console, engine_args, show_map=True) as session:
        for index, act in enumerate(ACTS):
            console.print(Text())
            console.print(screen.heading(f"Act {index + 1} of {len(ACTS)}: {act.name}"))
            for line in Text(act.caption, "italic").wrap(console, screen.width):
                console.print(screen.fit(line))
            calls = [_call(first + i, ask, step_s) for i, ask in enumerate(act.asks)]
            session.answer(calls, len(calls))
            session.settle()
            run = session.recorded()
            if run is None or session.interrupted:
                break
            part = views.part(run, {call.request_id for call in calls})
            views.print_apart(console, (PICTURES[picture](part, first) for picture in act.pictures))
            first += len(calls)
            step_s = median([step.t_end - step.schedule.t0 for step in run.steps] or [0]) / 1e9
    session.show(("totals",))
    return session.exit_code


def _call(number: int, ask: Ask, step_s: float) -> Call:
    params = SamplingParams(temperature=0.0, max_tokens=ask.max_tokens, stop=ask.stop, output_kind=RequestOutputKind.DELTA)
    slow = max(0.02, round(ask.steps_away * step_s, 2)) if ask.steps_away else 0.0
    return Call(number, f"caller-{request_name(number)}", ask.prompt, params, slow=slow)
