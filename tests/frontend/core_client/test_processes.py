"""Engine cores end when they are told, however stubborn; their own end is noticed."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.frontend.core_client.conftest import children
from vllm_lite.frontend.core_client import processes
from vllm_lite.frontend.core_client.processes import EngineProcesses


@pytest.fixture
def started() -> Iterator[EngineProcesses]:
    made = EngineProcesses()
    yield made
    made.close(timeout=0)


def pids(started: EngineProcesses) -> list[int]:
    return [process.pid for process in started._processes.values()]


@pytest.fixture
def handshake(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/nobody-listens"


@pytest.mark.parametrize("mode", ["says nothing", "ignores SIGTERM"])
def test_close_ends_them_all(
    fake_core: Callable[[str], None], started: EngineProcesses, handshake: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "DEATH_PIPE_SECONDS", 0.2)
    fake_core(mode)
    started.start(handshake, range(2))
    assert sorted(child.pid for child in children()) == sorted(pids(started))
    assert started.exited() == {}
    started.close(timeout=0.2 if mode == "ignores SIGTERM" else None)
    assert children() == []
    assert len(started.exited()) == 2
    started.close()


def test_they_have_a_process_group_of_their_own(
    fake_core: Callable[[str], None], started: EngineProcesses, handshake: str
) -> None:
    fake_core("says nothing")
    started.start(handshake, range(1))
    assert os.getpgid(pids(started)[0]) == pids(started)[0]


@pytest.mark.parametrize("asked", ["", "glibc.malloc.check=1"])
def test_they_have_large_pages_and_what_the_user_asks_of_glibc(
    fake_core: Callable[[str], None],
    started: EngineProcesses,
    handshake: str,
    asked: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            given.append(options["env"]["GLIBC_TUNABLES"])
            super().__init__(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    monkeypatch.setenv("GLIBC_TUNABLES", asked)
    fake_core("says nothing")
    started.start(handshake, range(1))
    assert given == ["glibc.malloc.hugetlb=1:glibc.malloc.check=1" if asked else "glibc.malloc.hugetlb=1"]


@pytest.mark.parametrize(("signum", "how"), [(signal.SIGKILL, "was ended by SIGKILL"), (None, "ended with exit code 3")])
def test_an_exit_is_noticed_once_and_the_others_are_ended(
    fake_core: Callable[[str], None], started: EngineProcesses, handshake: str, signum: signal.Signals | None, how: str
) -> None:
    fake_core("says nothing" if signum else "exits")
    started.start(handshake, range(2 if signum else 1))
    news: queue.Queue[tuple[int, str]] = queue.Queue()
    started.watch(lambda index, what: news.put((index, what)))
    if signum:
        os.kill(pids(started)[0], signum)
    assert news.get(timeout=30) == (0, f"engine core 0 (pid {pids(started)[0]}) {how}")
    started.close()
    assert news.empty()
    assert children() == []


def test_a_condemned_core_ends_although_it_hangs(
    fake_core: Callable[[str], None], started: EngineProcesses, handshake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERMINATE_SECONDS", "DEATH_PIPE_SECONDS"):
        monkeypatch.setattr(processes, name, 0.1)
    fake_core("ignores SIGTERM")
    started.start(handshake, range(1))
    news: list[int] = []
    started.watch(lambda index, _: news.append(index))
    started.condemn()
    assert started._watcher is not None
    started._watcher.join(30)
    assert children() == []
    assert news == []  # it had said so itself


def test_an_orderly_end_is_no_news(fake_core: Callable[[str], None], started: EngineProcesses, handshake: str) -> None:
    fake_core("says nothing")
    started.start(handshake, range(1))
    news: list[int] = []
    started.watch(lambda index, _: news.append(index))
    started.close()
    assert news == []


def test_a_fork_of_the_owner_ends_nobody(fake_core: Callable[[str], None], started: EngineProcesses, handshake: str) -> None:
    fake_core("says nothing")
    started.start(handshake, range(1))
    owner, started._owner = started._owner, -1
    assert started.close() is False
    assert started.exited() == {}
    started._owner = owner


def test_the_death_pipe_is_held_by_nobody_else(
    fake_core: Callable[[str], None], started: EngineProcesses, handshake: str
) -> None:
    fake_core("says nothing")
    started.start(handshake, range(2))
    assert started._death_fd is not None
    assert not os.get_inheritable(started._death_fd)
    pipe = os.readlink(f"/proc/self/fd/{started._death_fd}")
    for pid in pids(started):
        assert open_files(pid).count(pipe) == 1  # its read end


def open_files(pid: int) -> list[str]:
    """Of a process that may be opening and closing some right now."""
    found = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(fd))
    return found
