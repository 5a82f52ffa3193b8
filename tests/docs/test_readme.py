"""What the pages show is run: snippets, commands, links, make targets."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from tests.architecture.source import ROOT
from tests.console.screens import render
from tests.console.story import MS, Caller, Teller
from vllm_lite import AsyncEngineArgs, AsyncLLM
from vllm_lite.console.mailroom import Mailroom
from vllm_lite.console.timeline import Overview
from vllm_lite.console.totals import Totals

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
README = (ROOT / "README.md").read_text()


def test_the_library_snippet_runs(tmp_path: Path) -> None:
    (snippet,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    (tmp_path / "snippet.py").write_text(snippet)
    done = subprocess.run([sys.executable, tmp_path / "snippet.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


async def test_the_figures_are_where_the_page_says(tiny_model_path: Path) -> None:
    (path,) = re.findall(r"`engine\.([\w.]+registry)`", README)
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(tiny_model_path), distributed_executor_backend="toy"))
    try:
        assert b"vllm:num_requests_running{" in generate_latest(attrgetter(path)(engine))
    finally:
        engine.shutdown()


def phrases(text: str) -> list[str]:
    """What stands there beside figures, bars and the rows of bags."""
    lines = [re.sub(r"\d[\d.,]*(?: (?:us|ms|s)\b)?|[─▁▄▆]", "#", line) for line in text.splitlines() if " │ " not in line]
    return [re.sub(r"[# ]*#[# ]*", "#", phrase.strip()) for line in lines for phrase in re.split(r"  +", line) if phrase]


def test_the_picture_is_as_the_program_draws_it_now() -> None:
    (picture,) = re.findall(r"^```text\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    two = [Caller(answer=40), Caller(answer=40)]
    calm, lively = Teller(two).tell(), Teller([Caller(), Caller(slow=40 * MS), Caller(stops=True)]).tell()
    views = Mailroom(calm, numbers=[3, 4], texts={"req-0": ["A"] * 40}), Overview(calm, first=3), Totals(lively)
    for shown, view in zip(picture.split("\n\n")[1:], views, strict=True):
        drawn = "\n".join(phrases(render(view, 100, terminal=True)))
        assert [phrase for phrase in phrases(shown) if phrase not in drawn] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize(("slow", "code", "shown"), [("sleep 3", 0, ".\n"), ("{ sleep 3; false; }", 2, ".")])
def test_make_shows_that_it_is_at_work_where_pip_is_silent(slow: str, code: int, shown: str) -> None:
    command = ["make", "--silent", f"--eval=probe: ; @$(DOTS) {slow} && echo", "probe"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, shown)


def test_every_long_line_of_make_does() -> None:
    recipes = re.findall(r"^\t@.*(?:\\\n.*)*", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [recipe for recipe in recipes if "$(PIP)" in recipe and "$(DOTS)" not in recipe] == []
    assert len([recipe for recipe in recipes if "$(PIP)" in recipe]) == 3


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = "\n".join(page.read_text() for page in PAGES)
    assert set(re.findall(r"(?:`|^    )make ([a-z]+)", pages, re.MULTILINE)) <= targets


def shown_commands() -> list[list[str]]:
    """Every `vllm-lite ...` line of the pages, split as a shell would."""
    lines = [line for page in PAGES for line in re.findall(r"^ {4}vllm-lite (.*)$", page.read_text(), re.MULTILINE)]
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("command", shown_commands(), ids=" ".join)
def test_shown_commands_are_understood(command: list[str]) -> None:
    from vllm_lite.entrypoints.cli.main import build_parser

    build_parser().parse_args(command)
