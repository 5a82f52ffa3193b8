"""A worker's command: `python -m vllm_lite.worker.proc --rank N --calls QUEUE --replies QUEUE --death-fd FD`.

Process: worker. Knows: the two queues of its executor, and that it ends when the engine core does (end of file behind FD).
Does not know: what a step is; it calls the worker's methods by name.
Mirrors: vllm/v1/executor/multiproc_executor.py (WorkerProc)
"""

import argparse
import gc
import logging
import os
import pkgutil
import signal
import threading
import time
from typing import Any

import msgspec

from vllm_lite.config import VllmConfig
from vllm_lite.exceptions import VLLMClientError
from vllm_lite.wire.serial_utils import MsgpackDecoder, MsgpackEncoder
from vllm_lite.wire.shm_broadcast import MessageQueue, QueueCancelledError
from vllm_lite.wire.step import ModelRunnerOutput, WorkerCall, WorkerReply

logger = logging.getLogger(__name__)

ORPHAN_GRACE_S = 2.0
DEFAULT_WORKER = "vllm_lite.worker.worker.Worker"  # unless additional_config["worker_cls"] names another by its full path


def main(argv: list[str] | None = None) -> int:
    """Serve one executor until it is gone."""
    parser = argparse.ArgumentParser(prog="vllm_lite.worker.proc")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--calls", required=True, help="the executor's queue to all workers")
    parser.add_argument("--replies", required=True, help="this worker's queue to the executor")
    parser.add_argument("--death-fd", type=int, required=True, help="read end of a pipe that closes when the executor dies")
    args = parser.parse_args(argv)
    logging.basicConfig(
        level=os.environ.get("VLLM_LITE_LOGGING_LEVEL", "WARNING"),
        format=f"%(levelname)s %(asctime)s [worker {args.rank}] %(message)s",
        datefmt="%H:%M:%S",
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the front end's to answer
    calls = MessageQueue.open(args.calls, args.rank)
    replies = MessageQueue.open(args.replies, None)
    gc.disable()  # what start-up makes stays, so looking for garbage in it would be time lost
    threading.Thread(target=_watch_executor, args=(args.death_fd, calls), name="watch", daemon=True).start()
    return WorkerServer(args.rank, calls, replies).run()


def _watch_executor(death_fd: int, calls: MessageQueue) -> None:
    os.read(death_fd, 1)  # nobody writes, so this returns at end of file
    calls.cancel()
    time.sleep(ORPHAN_GRACE_S)
    os._exit(1)


class WorkerServer:
    """Builds the worker that the first message configures, then answers calls one after another."""

    def __init__(self, rank: int, calls: MessageQueue, replies: MessageQueue) -> None:
        self._rank, self._calls, self._replies = rank, calls, replies
        self._decoder = MsgpackDecoder(WorkerCall)
        self._encoder = MsgpackEncoder()

    def run(self) -> int:
        """The exit code: 0 after an orderly end, 1 where the worker could not be built."""
        try:
            config = msgspec.msgpack.decode(self._calls.dequeue()[0], type=VllmConfig)
            worker_class = pkgutil.resolve_name(config.additional_config.get("worker_cls", DEFAULT_WORKER))
            worker = worker_class(config, rank=self._rank)
        except Exception as error:
            if not isinstance(error, VLLMClientError):  # what the user asked for is answered by the sentence alone
                logger.exception("the worker cannot start")
            self._reply(WorkerReply(0, type(error).__name__, str(error)))
            return 1
        self._reply(WorkerReply(0))
        gc.freeze()
        gc.enable()
        try:
            while True:
                self._serve(worker, self._decoder.decode(self._calls.dequeue()))
        except QueueCancelledError:  # the executor is gone
            return 0
        finally:
            worker.shutdown()

    def _serve(self, worker: Any, call: WorkerCall) -> None:
        """Run one call. Where it fails the executor decides what that means, if it waits for this worker's answer at all."""
        reply = WorkerReply(call.call_id)
        typed = call.scheduler_output or call.kv_cache_config
        args = call.args if typed is None else [typed]
        try:
            result = getattr(worker, call.method)(*args, **call.kwargs)
            if isinstance(result, ModelRunnerOutput):
                reply.model_output = result
            elif call.method == "get_kv_cache_specs":
                reply.kv_cache_specs = result
            else:
                reply.result = result
        except Exception as error:
            logger.exception("%s failed", call.method)
            if call.output_rank not in (None, self._rank):
                raise  # nobody would hear of it: this worker ends, and that is heard
            reply = WorkerReply(call.call_id, type(error).__name__, str(error))
        if call.output_rank in (None, self._rank):
            self._reply(reply)

    def _reply(self, reply: WorkerReply) -> None:
        try:
            frames = self._encoder.encode(reply)
        except TypeError as error:
            frames = self._encoder.encode(WorkerReply(reply.call_id, "TypeError", f"the result cannot be sent: {error}"))
        self._replies.enqueue(frames)


if __name__ == "__main__":
    exit_code = main()
    logging.shutdown()
    os._exit(exit_code)  # all is closed; taking torch apart would only take time and print what native code leaks
