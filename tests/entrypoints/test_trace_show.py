from __future__ import annotations

from pathlib import Path

import pytest

from vllm_lite.entrypoints.cli.main import main
from vllm_lite.tracing.canned import write_canned_run
from vllm_lite.tracing.journey import load_run

Out = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_canned_run(tmp_path_factory.mktemp("canned") / "run"))


def titles(capsys: Out) -> list[str]:
    """The first words of each view."""
    return [" ".join(line.split("  ")[:2]) for line in capsys.readouterr().out.splitlines() if line.endswith("-----")]


def test_all_views(run: str, capsys: Out) -> None:
    assert main(["trace", "show", run]) == 0
    assert titles(capsys) == [
        *("MAILROOM 9 bags", "REQUESTS 3 requests", "REQUEST A ann", "REQUEST B bob", "REQUEST C cleo", "TOTALS 3 requests"),
    ]


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ("mailroom", ["MAILROOM 9 bags"]),
        ("request", ["REQUESTS 3 requests", "REQUEST A ann", "REQUEST B bob", "REQUEST C cleo"]),
        ("totals", ["TOTALS 3 requests"]),
    ],
)
def test_one_view(run: str, view: str, expected: list[str], capsys: Out) -> None:
    assert main(["trace", "show", run, "--view", view]) == 0
    assert titles(capsys) == expected


def test_one_request_by_letter_or_id(run: str, capsys: Out) -> None:
    internal_id = load_run(run).requests[1].posts[0].internal_id
    for name in ("B", "bob", internal_id):
        assert main(["trace", "show", run, "--request", name]) == 0
        assert titles(capsys) == ["REQUEST B bob"]


def test_the_slowest_and_their_waterfalls(run: str, capsys: Out) -> None:
    assert main(["trace", "show", run, "--slow", "2"]) == 0
    assert titles(capsys) == ["SLOWEST 2 of 3 requests", "REQUEST C cleo", "REQUEST A ann"]


def test_one_bag(run: str, capsys: Out) -> None:
    assert main(["trace", "show", run, "--bag", "4"]) == 0
    assert titles(capsys) == ["BAG 4 2 letters"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--bag", "77"], "--bag must be the number of a bag of this run, at most 8; got 77"),
        (["--slow", "0"], "--slow must be an integer >= 1; got 0"),
        (["--request", "zoe"], "--request must be a letter up to C, or the id of a request of this run; got 'zoe'"),
    ],
)
def test_what_is_not_there_is_refused(run: str, argv: list[str], said: str, capsys: Out) -> None:
    assert main(["trace", "show", run, *argv]) == 2
    assert capsys.readouterr().err == f"vllm-lite: {said}\n"


def test_a_folder_without_a_run(tmp_path: Path, capsys: Out) -> None:
    for folder, why in ((tmp_path, "holds no spools"), (tmp_path / "missing", "is no folder")):
        assert main(["trace", "show", str(folder)]) == 2
        assert why in capsys.readouterr().err


@pytest.mark.parametrize("command", ["show DIR", "check DIR", "export DIR --html page.html", "diff DIR DIR"])
def test_a_folder_of_runs_names_some_of_them(command: str, tmp_path: Path, capsys: Out) -> None:
    for name in "abcd":
        write_canned_run(tmp_path / name)
    assert main(["trace", *command.replace("DIR", str(tmp_path)).split()]) == 2
    assert capsys.readouterr().err.endswith(f". Folders in it with a run: {tmp_path}/b, {tmp_path}/c, {tmp_path}/d\n")


def test_two_runs_side_by_side(tmp_path: Path, capsys: Out) -> None:
    a, b = write_canned_run(tmp_path / "a"), write_canned_run(tmp_path / "b", engine_dies=True)
    assert main(["trace", "diff", str(a), str(b)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("DIFF  B over A  ---")
    assert [line.split()[0] for line in lines[1:3]] == ["A", "B"]


def test_one_that_is_none(tmp_path: Path, capsys: Out) -> None:
    a = write_canned_run(tmp_path / "a")
    for pair in ((a, tmp_path / "no"), (tmp_path / "no", a)):
        assert main(["trace", "diff", *map(str, pair)]) == 2
        assert capsys.readouterr().err.startswith(f"vllm-lite: {tmp_path / 'no'} is no folder; `vllm-lite trace run --out ")
