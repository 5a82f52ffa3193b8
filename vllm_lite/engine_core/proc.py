"""The engine core's command: `python -m vllm_lite.engine_core.proc --handshake ADDR --engine-index N --death-fd FD`.

Process: engine core, from its first line to its exit code. Knows: the handshake, signals, the parent's death. Does not know:
steps or frames. It ends by SIGTERM, by the end of the file behind FD (the parent is gone), or by a failure; Ctrl-C, which a
terminal sends to every process of the foreground, is the parent's to answer. SIGTERM is an orderly end, so requests in flight
end with finish_reason "abort"; after any other end their callers get EngineDeadError.
Mirrors: vllm/v1/engine/core.py (EngineCoreProc.run_engine_core, startup_handshake)
"""

import argparse
import gc
import logging
import os
import select
import signal
import sys
import threading
import time
from typing import Any

import msgspec
import zmq

from vllm_lite.config import VllmConfig
from vllm_lite.engine_core.core import EngineCoreProc
from vllm_lite.engine_core.executor.abstract import Executor
from vllm_lite.exceptions import VLLMClientError
from vllm_lite.tracing.recorder import now_ns
from vllm_lite.wire.messages import PROTOCOL_VERSION, EngineHello, EngineInit, EngineStartFailed
from vllm_lite.wire.sockets import make_zmq_socket

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 300
HANDSHAKE_LINGER_MS = 5000
SWITCH_INTERVAL_S = 0.0005  # how long a bag may wait for the interpreter while the worker runs in this process
ORPHAN_GRACE_S = 2.0  # how long an orderly end may take once nobody waits for it


class Watch(threading.Thread):
    """Waits for SIGTERM and for the parent's death: an exit while starting, an orderly shutdown while running.

    A thread, and a pipe that the interpreter writes each signal to: a handler in Python would run only when the main thread
    next executes Python, and a main thread that is just about to sleep on its queue would sleep through the signal.
    """

    def __init__(self, death_fd: int) -> None:
        super().__init__(name="watch", daemon=True)
        self._death_fd = death_fd
        self._signals, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.core: EngineCoreProc | None = None  # who is asked to end, once it runs

    def run(self) -> None:
        """Wait, and see to the end. A daemon: an end of another kind does not wait for this."""
        readable, _, _ = select.select([self._signals, self._death_fd], [], [])
        if self.core is None:
            os._exit(1 if self._death_fd in readable else 128 + signal.SIGTERM)  # the main thread may be anywhere
        self.core.request_shutdown()
        if self._death_fd not in readable:
            select.select([self._death_fd], [], [])
        time.sleep(ORPHAN_GRACE_S)
        os._exit(1)


def main(argv: list[str] | None = None) -> int:
    """Run one engine core; the exit code is 0 after an orderly end."""
    parser = argparse.ArgumentParser(prog="vllm_lite.engine_core.proc")
    parser.add_argument("--handshake", required=True, help="where the launcher's ROUTER socket is bound")
    parser.add_argument("--engine-index", type=int, required=True, help="this engine's number, from 0")
    parser.add_argument("--death-fd", type=int, required=True, help="read end of a pipe that closes when the parent dies")
    args = parser.parse_args(argv)
    logging.basicConfig(
        level=os.environ.get("VLLM_LITE_LOGGING_LEVEL", "WARNING"),
        format=f"%(levelname)s %(asctime)s [engine core {args.engine_index}] %(message)s",
        datefmt="%H:%M:%S",
    )
    watch = Watch(args.death_fd)
    watch.start()
    gc.disable()  # what start-up makes stays, so looking for garbage in it would be time lost
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    core = start(args.handshake, args.engine_index)
    if core is None:
        return 1
    watch.core = core
    gc.freeze()
    gc.enable()
    try:
        core.run_busy_loop()
    except Exception as error:
        logger.exception("the engine core failed")
        core.shutdown(error)  # every front end is told that the engine is dead
        return 1
    core.shutdown()
    return 0


def start(handshake_address: str, engine_index: int) -> EngineCoreProc | None:
    """Shake hands and build the engine core; None where it cannot come up, which the launcher has been told then."""
    t0 = now_ns()
    ctx: zmq.Context[Any] = zmq.Context()
    identity = engine_index.to_bytes(2, "little")
    handshake = make_zmq_socket(ctx, handshake_address, zmq.DEALER, bind=False, identity=identity, linger=HANDSHAKE_LINGER_MS)
    try:
        handshake.send(msgspec.msgpack.encode(EngineHello(PROTOCOL_VERSION, os.getpid(), engine_index)))
        if not handshake.poll(HANDSHAKE_TIMEOUT_S * 1000):
            raise TimeoutError(f"no answer to HELLO within {HANDSHAKE_TIMEOUT_S} s")
        init = msgspec.msgpack.decode(handshake.recv(), type=EngineInit)
        t1 = now_ns()
        vllm_config = msgspec.msgpack.decode(init.vllm_config, type=VllmConfig)
        core = EngineCoreProc(vllm_config, Executor.get_class(vllm_config), engine_index, ctx, init)
        core.step_tracer.phase("handshake", t0, t1)
        core.step_tracer.phase("engine_core.start", t0)
        handshake.send(msgspec.msgpack.encode(core.ready()))
        return core
    except Exception as error:
        if not isinstance(error, VLLMClientError):  # what the user asked for is answered by the sentence alone
            logger.exception("the engine core cannot start")
        handshake.send(msgspec.msgpack.encode(EngineStartFailed(type(error).__name__, str(error))))
        ctx.destroy(linger=HANDSHAKE_LINGER_MS)
        return None
    finally:
        handshake.close()


if __name__ == "__main__":
    exit_code = main()
    logging.shutdown()
    os._exit(exit_code)  # all is closed; taking torch apart would only take time and print what native code leaks
