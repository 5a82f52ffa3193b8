"""The engine core processes that this process started, and the coordinator: their life, their death, their end.

Process: front end, or the launcher; one thread of it waits for processes to exit. Knows: pids, the death pipe. Does not know:
sockets.
A child that holds the pipe's read end sees its end when this process is gone, however it went, and exits.
Mirrors: vllm/v1/engine/utils.py (CoreEngineProcManager), vllm/v1/engine/core_client.py (the monitor thread)
"""

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

ENGINE_CORE_MODULE = "vllm_lite.engine_core.proc"
COORDINATOR_MODULE = "vllm_lite.engine_core.coordinator"
COORDINATOR = -1  # as an index
# glibc, which reads this at start alone, asks Linux for pages of 2 MiB: a bfloat16 decode on a CPU takes a tenth less time.
TUNABLES, LARGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
TERMINATE_SECONDS = 5.0  # for an orderly end, before the death pipe closes
DEATH_PIPE_SECONDS = 2.0  # for the exit that the closed pipe asks for, before SIGKILL


class EngineProcesses:
    """Starts engine cores, tells when one has exited, and ends them all."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}  # by index
        self.pidfds: list[int] = []  # each readable once its process has exited
        self._death_fd: int | None = None  # write end of the death pipe; no child has it
        self._wake_fd: int | None = os.eventfd(0)
        self._watcher: threading.Thread | None = None
        self._closing = False

    def start(self, handshake_address: str, indexes: Sequence[int], coordinator: Sequence[str] = ()) -> None:
        """Start engine cores of these indexes, and a coordinator where there are arguments for one."""
        modules = {COORDINATOR: [COORDINATOR_MODULE, *coordinator]} if coordinator else {}
        for index in indexes:
            modules[index] = [ENGINE_CORE_MODULE, "--handshake", handshake_address, "--engine-index", str(index)]
        asked = os.environ.get(TUNABLES)  # by the user: it comes last, and wins
        environment = os.environ | {TUNABLES: f"{LARGE_PAGES}:{asked}" if asked else LARGE_PAGES}
        read_end, self._death_fd = os.pipe()
        try:
            for index, module in modules.items():
                process = subprocess.Popen(
                    [sys.executable, "-m", *module, "--death-fd", str(read_end)],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    pass_fds=(read_end,),
                    process_group=0,  # of its own, so that Ctrl-C reaches it through us
                )
                self._processes[index] = process
                self.pidfds.append(os.pidfd_open(process.pid))
        finally:
            os.close(read_end)

    def exited(self) -> dict[int, str]:
        """How each process that is gone has ended, a clause by its index."""
        return {index: _ending(index, process) for index, process in self._processes.items() if process.poll() is not None}

    def watch(self, on_exit: Callable[[int, str], None], *, by_force: bool = False) -> None:
        """From now on call `on_exit(index, how)` in a thread when a process exits, once; the others are then ended, `by_force`
        at once: an orderly end would tell callers that their requests were aborted before they hear of the death."""
        args = (on_exit, None if by_force else TERMINATE_SECONDS)
        self._watcher = threading.Thread(target=self._watch, args=args, name="engine-core-monitor", daemon=True)
        self._watcher.start()

    def condemn(self) -> None:
        """An engine core said that it is dying: see to it, in the watching thread, that all of them really end."""
        if self._wake_fd is not None:
            os.eventfd_write(self._wake_fd, 1)

    def close(self, timeout: float | None = None) -> bool:
        """End them all, in order for `timeout` seconds, then by force; False in a fork of their owner, which ends none. May be
        called more than once."""
        if os.getpid() != self._owner:
            return False
        self._closing = True
        watcher = self._watcher
        if watcher is not None and watcher is not threading.current_thread():
            self.condemn()
            watcher.join()
        self._end(TERMINATE_SECONDS if timeout is None else timeout)
        for fd in (*self.pidfds, *([] if self._wake_fd is None else [self._wake_fd])):
            os.close(fd)
        self.pidfds, self._wake_fd = [], None
        return True

    def _watch(self, on_exit: Callable[[int, str], None], timeout: float | None) -> None:
        poller = select.poll()
        assert self._wake_fd is not None
        for fd in (*self.pidfds, self._wake_fd):
            poller.register(fd, select.POLLIN)
        poller.poll()
        if self._closing:
            return
        for index, how in self.exited().items():
            on_exit(index, how)
        self._end(timeout)

    def _end(self, timeout: float | None) -> None:
        """In order for `timeout` seconds, then by force; None: by force at once."""
        for process in self._processes.values():
            process.send_signal(signal.SIGKILL if timeout is None else signal.SIGTERM)  # nothing where it has exited
        self._wait(timeout or 0)
        death_fd, self._death_fd = self._death_fd, None
        if death_fd is not None:
            os.close(death_fd)
        self._wait(DEATH_PIPE_SECONDS)
        for process in self._processes.values():
            if process.poll() is None:
                logger.warning("pid %d does not end and is killed", process.pid)
                process.kill()
            process.wait()

    def _wait(self, timeout: float) -> None:
        """Until all have exited, for at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0))


def _ending(index: int, process: subprocess.Popen[bytes]) -> str:
    name = "the coordinator" if index == COORDINATOR else f"engine core {index}"
    how = f"ended with exit code {process.returncode}"
    if process.returncode < 0:
        signals = {number.value: number.name for number in signal.Signals}  # of real-time signals two are named
        how = f"was ended by {signals.get(-process.returncode, f'signal {-process.returncode}')}"
    return f"{name} (pid {process.pid}) {how}"
