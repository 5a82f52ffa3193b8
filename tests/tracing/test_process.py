from __future__ import annotations

import os
import subprocess
import sys

from vllm_lite.tracing.process import Process, is_alive


def test_times_become_dates() -> None:
    assert Process("worker", 1, "host", "boot", offset=1000).wall(5) == 1005


def test_an_end_in_order_needs_every_threads_farewell() -> None:
    process = Process("engine-core", 1, "host", "boot", threads={"main": True, "input": False})
    assert not process.ended
    assert process.died
    process.alive = True
    assert not process.died
    process.threads["input"] = True
    process.alive = False
    assert process.ended
    assert not process.died


def test_a_process_without_spools_has_not_ended() -> None:
    assert not Process("worker", 1, "host", "boot").ended


def test_alive() -> None:
    assert is_alive(os.getpid())
    assert is_alive(1)
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(child.pid)  # it ended, though nobody has collected it yet
    child.wait()
    assert not is_alive(child.pid)
