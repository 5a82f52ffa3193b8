"""Fifty processes of every kind are killed at random moments: the spools hold what anybody had received."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.flow.conftest import all_gone
from tests.flow.killable import CALLERS
from vllm_lite.tracing import spool
from vllm_lite.tracing.check import check_run
from vllm_lite.tracing.journey import LATE, Run, load_run
from vllm_lite.tracing.spans import run_spans

MODULES = {
    "engine-core": "vllm_lite.engine_core.proc",
    "worker": "vllm_lite.worker.proc",
    "exporter": "vllm_lite.tracing.exporter",
}
# In each round first the exporter is killed, which nobody should notice, then one of the others.
ROUNDS = [
    (*sorted(random.Random(number).sample(range(1, 400), 2)), ("frontend", "engine-core", "worker")[number % 3])
    for number in range(25)
]


@dataclass
class Played:
    """One round, when all is over."""

    run_dir: Path
    victim: str
    tokens: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # that each caller had received
    told: set[str] = field(default_factory=set)
    all_gone: bool = False

    @property
    def run(self) -> Run:
        return load_run(self.run_dir)


class Killer:
    """Starts front ends and kills."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.folder = folder
        self.pipes = [os.pipe() for _ in ROUNDS]
        self.parent = subprocess.Popen(
            [sys.executable, "-m", "tests.flow.killable", str(model)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[write for _, write in self.pipes],
            text=True,
        )
        for _, write in self.pipes:
            os.close(write)

    def play(self, number: int) -> Played:
        first, second, victim = ROUNDS[number]
        read, write = self.pipes[number]
        played, family, letters = Played(self.folder / str(number), victim), dict[str, psutil.Process](), 0
        assert self.parent.stdin is not None
        self.parent.stdin.write(f"{played.run_dir} {write}\n")
        self.parent.stdin.flush()
        with os.fdopen(read) as lines:
            front = psutil.Process(int(lines.readline()))
            for line in lines:
                name, what = line.split()
                if what == "told":
                    played.told.add(name)
                    continue
                played.tokens[name] += int(what)
                letters += 1
                if letters == first:
                    family = self.family(front)
                    family["exporter"].kill()
                elif letters == second:
                    family[victim].kill()
        played.all_gone = all_gone(list(family.values()))
        return played

    def family(self, front: psutil.Process) -> dict[str, psutil.Process]:
        """A front end, and all that it started."""
        lines = {process: process.cmdline() for process in front.children(recursive=True)}
        return {"frontend": front} | {role: p for p, line in lines.items() for role in MODULES if MODULES[role] in line}

    def close(self) -> None:
        assert self.parent.stdin is not None
        self.parent.stdin.close()
        self.parent.wait()


@pytest.fixture(scope="module")
def rounds(tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Future[Played]]]:
    """All rounds, two at a time."""
    killer = Killer(tiny_model_path, tmp_path_factory.mktemp("killed"))
    with ThreadPoolExecutor(2) as pool:
        yield [pool.submit(killer.play, number) for number in range(len(ROUNDS))]
    killer.close()


@pytest.mark.parametrize("number", range(len(ROUNDS)))
def test_whoever_is_killed_the_spools_hold_what_was_received(rounds: list[Future[Played]], number: int) -> None:
    played = rounds[number].result(timeout=100)
    assert len(played.tokens) == CALLERS
    assert played.told == (set() if played.victim == "frontend" else set(played.tokens))
    assert played.all_gone
    run = played.run
    assert [finding for finding in check_run(run) if not finding.ok] == []
    check_front_end(run, played)
    # Of a core or a worker that was killed, the last bag may be without its step or its work.
    bags = [bag for bag in run.bags if bag.letters]
    assert all(bag.step is not None and bag.send is not None and bag.step.works for bag in bags[:-1])
    check_roots(run, played.victim)
    check_torn(played)


def check_front_end(run: Run, played: Played) -> None:
    """Every token that a caller received is in a letter."""
    assert {request.accept.external_id for request in run.requests} == set(played.tokens)
    for request in run.requests:
        kept = sum(letter.tokens for letter in request.letters if letter.fate != LATE)
        assert kept >= played.tokens[request.accept.external_id]


def check_roots(run: Run, victim: str) -> None:
    """Every request is one closed span with an error."""
    spans = list(run_spans(run))
    roots = [span for span in spans if span.name.startswith("text_completion")]
    assert len(roots) == CALLERS
    expected = "frontend_dead" if victim == "frontend" else "engine_dead"
    assert {root.attributes["error.type"] for root in roots} == {expected}
    assert all(root.error and root.end >= root.start for root in roots)
    if victim != "frontend":  # else the engine core ended in order
        stays = [span.attributes["error.type"] for span in spans if span.name == "process engine_core.inputs"]
        assert stays == ["engine_dead"] * CALLERS


def check_torn(played: Played) -> None:
    """A frame that was cut short costs itself alone."""
    before = played.run
    path = max(spool.segments(played.run_dir).items(), key=lambda item: played.victim in item[0])[1][-1]
    os.truncate(path, path.stat().st_size - 1)
    after = played.run
    assert (before.torn, after.torn) == (0, 1)
    assert len(after.requests) == len(before.requests)
