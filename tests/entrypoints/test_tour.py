from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.console.screens import printed, screen
from vllm_lite.entrypoints.cli import tour
from vllm_lite.entrypoints.cli.main import main
from vllm_lite.entrypoints.cli.tour import find_tours, show
from vllm_lite.exceptions import VLLMValidationError

Out = pytest.CaptureFixture[str]

CODE = """def post(letter):
    stamp(letter)
    queue.append(letter)


def take():
    return queue.pop(0)
"""
STOPS = [("S3 post: a letter goes out", r"^    queue\.append"), ("S9 mailbox: and comes in", r"^def take\(")]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one source and one tour of two stops."""
    (tmp_path / "office.py").write_text(CODE)
    (tmp_path / "tours").mkdir()
    stops = [{"title": t, "file": "office.py", "pattern": pattern, "description": "As it says."} for t, pattern in STOPS]
    made = {"$schema": "any", "title": "One letter", "description": "From post to mailbox.", "steps": stops}
    (tmp_path / "tours" / "letter.tour").write_text(json.dumps(made))
    return tmp_path


PLAIN = """\
== One letter  =========================================
From post to mailbox.

S3 POST  a letter goes out  1 of 2  --------------------
front end  office.py:3
    1 | def post(letter):
    2 |     stamp(letter)
    3 >     queue.append(letter)
    4 |
    5 |
    6 | def take():
    7 |     return queue.pop(0)
As it says.

S9 MAILBOX  and comes in  2 of 2  ----------------------
front end  office.py:6
    4 |
    5 |
    6 > def take():
    7 |     return queue.pop(0)
As it says.
"""
DRAWN = str.maketrans({"=": "━", "-": "─", "|": "│", ">": "→"})


@pytest.mark.parametrize(("terminal", "expected"), [(False, PLAIN), (True, PLAIN.translate(DRAWN))])
def test_the_screen(root: Path, terminal: bool, expected: str) -> None:
    console = screen(56, terminal)
    show(console, find_tours(root)["letter"], root)
    assert printed(console) == expected


def test_no_line_is_wider_than_the_screen(root: Path) -> None:
    console = screen(24)
    show(console, find_tours(root)["letter"], root)
    assert max(map(len, printed(console).splitlines())) == 24


def test_a_line_of_code_that_is_too_long_goes_on_in_the_next_row(root: Path) -> None:
    (root / "office.py").write_text(CODE.replace("append(letter)", "append(letter)  # behind all that came before it"))
    console = screen(46)
    show(console, find_tours(root)["letter"], root)
    assert printed(console).splitlines()[5:9] == [
        "    1 | def post(letter):",
        "    2 |     stamp(letter)",
        "    3 >     queue.append(letter)  # behind all",
        "      |             that came before it",
    ]


def test_by_name_and_by_number(root: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tour, "ROOT", root)
    assert main(["tour"]) == 0
    assert capsys.readouterr().out == "1  letter  One letter\n"
    assert main(["tour", "letter"]) == main(["tour", "1"]) == 0
    first, second = capsys.readouterr().out.split("== One letter")[1:]
    assert first == second


@pytest.mark.parametrize("name", ["2", "0", "parcel"])
def test_a_tour_that_is_not_there(name: str, root: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tour, "ROOT", root)
    assert main(["tour", name]) == 2
    assert capsys.readouterr().err == f"vllm-lite: NAME must be one of letter, or the number of one; got '{name}'\n"


def test_outside_a_clone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="they come with a clone of the repository"):
        find_tours(tmp_path)


@pytest.mark.parametrize("code", ["nothing\n", CODE + CODE])
def test_an_anchor_that_is_not_one_place(code: str, root: Path) -> None:
    (root / "office.py").write_text(code)
    with pytest.raises(VLLMValidationError, match=r"pattern of 'S3 post: .* must be one that office.py holds once"):
        show(screen(56), find_tours(root)["letter"], root)


def test_help(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["tour", "--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: vllm-lite tour")
    assert max(map(len, text.splitlines())) <= 80


def test_a_rule_in_a_comment_ends_where_the_screen_does(root: Path) -> None:
    (root / "office.py").write_text(CODE.replace("\n\n\ndef take", f"\n    # ---- out {'-' * 80}\n\ndef take"))
    console = screen(56)
    show(console, find_tours(root)["letter"], root)
    rows = [row for row in printed(console).splitlines() if " | " in row and "---" in row]
    assert rows == [f"    4 |     # ---- out {'-' * 33}"] * 2
