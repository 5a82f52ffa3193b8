"""Workers as processes of their own, each behind two queues in shared memory.

Process: engine core. Knows: child processes, queues, who has answered what. Does not know: torch, or what a call does. Workers
find out that the engine core died by a pipe that closes with it; it finds out about them by their process descriptors.
Mirrors: vllm/v1/executor/multiproc_executor.py
"""

import contextlib
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec

from vllm_lite import exceptions
from vllm_lite.config import VllmConfig
from vllm_lite.engine_core.executor.abstract import Executor, FailureCallback
from vllm_lite.wire.kv_cache_interface import KVCacheConfig
from vllm_lite.wire.serial_utils import MsgpackDecoder, MsgpackEncoder
from vllm_lite.wire.shm_broadcast import MessageQueue, QueueCancelledError
from vllm_lite.wire.step import SchedulerOutput, WorkerCall, WorkerReply

logger = logging.getLogger(__name__)

EXECUTE_MODEL_TIMEOUT_S = 300.0
SHUTDOWN_GRACE_S = 4.0


class WorkerHandle:
    """One worker process as its executor holds it."""

    def __init__(self, rank: int, calls: MessageQueue) -> None:
        self.rank = rank
        self.replies = MessageQueue.create(rank=0)
        death_fd, self.death_pipe = os.pipe()
        command = [sys.executable, "-m", "vllm_lite.worker.proc", "--rank", str(rank), "--death-fd", str(death_fd)]
        command += ["--calls", calls.handle(), "--replies", self.replies.handle()]
        self.process = subprocess.Popen(command, pass_fds=[death_fd, *calls.fds, *self.replies.fds])
        os.close(death_fd)
        self.pending: dict[int, WorkerReply] = {}  # answers that came before somebody asked for them
        self.abandoned: set[int] = set()  # calls whose answer nobody waits for any more
        self._decoder = MsgpackDecoder(WorkerReply)

    def wait_for(self, call_id: int, timeout: float | None) -> WorkerReply:
        """This worker's answer to `call_id`; answers to other calls are kept for those who ask. Raises TimeoutError after
        `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while call_id not in self.pending:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            reply = self._decoder.decode(self.replies.dequeue(left))
            if reply.call_id in self.abandoned:
                self.abandoned.remove(reply.call_id)
            else:
                self.pending[reply.call_id] = reply
        return self.pending.pop(call_id)

    def abandon(self, call_id: int) -> None:
        """Nobody waits for the answer to `call_id` any more."""
        if self.pending.pop(call_id, None) is None:
            self.abandoned.add(call_id)

    def end(self, deadline: float) -> None:
        """Wait for the process until `deadline`, then kill it; free what tied us together."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, deadline - time.monotonic()))
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.replies.close()


class MultiprocExecutor(Executor):
    """`world_size` workers, each with the whole model; worker 0 answers for a step.

    The constructor returns once every worker stands, and ends them all where one cannot come up.
    """

    max_concurrent_batches = 2
    async_scheduling_by_default = True

    def __init__(self, vllm_config: VllmConfig) -> None:
        super().__init__(vllm_config)
        self._encoder = MsgpackEncoder()
        self._call_id = 0
        self._failure: str | None = None
        self._failure_callback: FailureCallback | None = None
        self._closed = False
        self._calls = MessageQueue.create(vllm_config.parallel_config.world_size)
        self._workers: list[WorkerHandle] = []
        self._stop_monitor = os.eventfd(0)
        self._monitor = threading.Thread(target=self._watch_workers, name="worker-monitor", daemon=True)
        try:
            for rank in range(vllm_config.parallel_config.world_size):
                self._workers.append(WorkerHandle(rank, self._calls))
            self._monitor.start()
            self._calls.enqueue([msgspec.msgpack.encode(vllm_config)])
            self._wait_until_ready()
        except BaseException:
            self.shutdown()
            raise

    def submit(self, method: str, *args: Any) -> Future[Any]:
        """Send the call; the answer is fetched when the Future is asked for it."""
        call_id = self._send(WorkerCall(0, method, output_rank=0), args)
        return ReplyFuture(lambda: self._answer(self._workers[0], call_id, method, EXECUTE_MODEL_TIMEOUT_S))

    def collective_rpc(
        self, method: str, timeout: float | None = None, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> list[Any]:
        """Call every worker; raises TimeoutError naming the first that did not answer within `timeout` seconds."""
        call_id = self._send(WorkerCall(0, method, kwargs=kwargs or {}), args)
        waiting = iter(self._workers)
        try:
            return [self._answer(worker, call_id, method, timeout) for worker in waiting]
        finally:
            for worker in waiting:  # after the first that fails or is late
                worker.abandon(call_id)

    def register_failure_callback(self, callback: FailureCallback) -> None:
        """Call `callback` when a worker dies; at once where one already has."""
        self._failure_callback = callback
        if self._failure is not None:
            callback()

    def check_health(self) -> None:
        """Raise RuntimeError where a worker is dead."""
        if self._failure is not None:
            raise RuntimeError(self._failure)

    def shutdown(self) -> None:
        """Let go of the workers, which end by that; kill those that do not. May be called more than once."""
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._stop_monitor, 1)
        if self._monitor.ident is not None:  # it was started
            self._monitor.join()
        os.close(self._stop_monitor)
        for worker in self._workers:
            os.close(worker.death_pipe)
        deadline = time.monotonic() + SHUTDOWN_GRACE_S
        for worker in self._workers:
            worker.end(deadline)
        self._calls.close()

    def _wait_until_ready(self) -> None:
        """Wait for every worker's first word; where one ended, its own reason beats its exit code."""
        for worker in self._workers:
            with contextlib.suppress(QueueCancelledError):
                reply = worker.wait_for(0, None)
                if reply.error_type is not None:
                    raise _start_error(worker.rank, reply)
        self.check_health()

    def _send(self, call: WorkerCall, args: tuple[Any, ...]) -> int:
        self.check_health()
        self._call_id += 1
        call.call_id = self._call_id
        match args:
            case (SchedulerOutput() as plan,):
                call.scheduler_output = plan
            case (KVCacheConfig() as kv_cache_config,):
                call.kv_cache_config = kv_cache_config
            case _:
                call.args = list(args)
        self._calls.enqueue(self._encoder.encode(call))
        return call.call_id

    def _answer(self, worker: WorkerHandle, call_id: int, method: str, timeout: float | None) -> Any:
        """What the call returned on one worker; RuntimeError where it raised."""
        try:
            reply = worker.wait_for(call_id, timeout)
        except QueueCancelledError:
            raise RuntimeError(self._failure) from None
        except TimeoutError:
            worker.abandon(call_id)
            raise TimeoutError(f"worker {worker.rank} did not answer {method} within {timeout} s") from None
        if reply.error_type is not None:
            raise RuntimeError(f"{method} failed on worker {worker.rank}: {reply.error_type}: {reply.error}")
        return reply.value

    def _watch_workers(self) -> None:
        """A thread's body: the first worker to end by itself takes all with it."""
        pidfds = {os.pidfd_open(worker.process.pid): worker for worker in self._workers}
        poller = select.poll()
        for fd in (*pidfds, self._stop_monitor):
            poller.register(fd, select.POLLIN)
        ended = [pidfds[fd] for fd, _ in poller.poll() if fd in pidfds]
        for fd in pidfds:
            os.close(fd)
        if not ended or self._closed:
            return
        self._failure = f"worker {ended[0].rank} ended with exit code {ended[0].process.wait()}"
        logger.error("%s", self._failure)
        for worker in self._workers:
            worker.replies.cancel()
        self._calls.cancel()
        if self._failure_callback is not None:
            self._failure_callback()


class ReplyFuture(Future[Any]):
    """A Future that fetches its result when it is asked for, in the thread that asks."""

    def __init__(self, fetch: Callable[[], Any]) -> None:
        super().__init__()
        self._fetch = fetch

    def result(self, timeout: float | None = None) -> Any:
        """Fetch, once; the fetch has a time limit of its own."""
        if not self.done():
            try:
                self.set_result(self._fetch())
            except Exception as error:
                self.set_exception(error)
        return super().result(timeout)


def _start_error(rank: int, reply: WorkerReply) -> Exception:
    """The worker's own error where it is one of ours, so that the caller meets the same class wherever the worker runs."""
    kind = getattr(exceptions, reply.error_type or "", None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind(reply.error)
    return RuntimeError(f"worker {rank} cannot start: {reply.error_type}: {reply.error}")
