"""An engine core that behaves badly, as a process: `FAKE_CORE` in the environment says how."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from typing import Any

import zmq

from vllm_lite.wire.messages import PROTOCOL_VERSION, EngineCoreReadyResponse, EngineHello, EngineInit, EngineStartFailed
from vllm_lite.wire.serial_utils import MsgpackDecoder, MsgpackEncoder
from vllm_lite.wire.sockets import make_zmq_socket


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--handshake", required=True)
    parser.add_argument("--engine-index", type=int, required=True)
    parser.add_argument("--death-fd", type=int, required=True)
    args = parser.parse_args()
    mode = os.environ["FAKE_CORE"]
    if mode == "exits":
        return 3
    if mode == "ignores SIGTERM":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctx: zmq.Context[Any] = zmq.Context()
    handshake = make_zmq_socket(
        ctx, args.handshake, zmq.DEALER, bind=False, identity=args.engine_index.to_bytes(2, "little"), linger=2000
    )
    if mode == "interrupts its parent":
        os.kill(os.getppid(), signal.SIGINT)
    if mode in ("says nothing", "interrupts its parent"):
        os.read(args.death_fd, 1)  # until the parent has closed its end
        return 0
    if mode == "talks nonsense":
        handshake.send(b"nonsense")
        return int(os.read(args.death_fd, 1) == b"")
    if mode == "speaks another protocol":
        handshake.send_multipart(MsgpackEncoder().encode(EngineHello(PROTOCOL_VERSION + 1, os.getpid(), args.engine_index)))
        return int(os.read(args.death_fd, 1) == b"")
    handshake.send_multipart(MsgpackEncoder().encode(EngineHello(PROTOCOL_VERSION, os.getpid(), args.engine_index)))
    init = MsgpackDecoder(EngineInit).decode(handshake.recv_multipart())
    if mode.startswith("fails with "):
        failed = EngineStartFailed(mode.removeprefix("fails with "), "the reason why")
        handshake.send_multipart(MsgpackEncoder().encode(failed))
        return 1
    if mode == "dies in silence":
        os.kill(os.getpid(), signal.SIGKILL)
    version = PROTOCOL_VERSION + (mode == "is ready in another protocol")
    response = EngineCoreReadyResponse(version, args.engine_index, os.getpid(), 64, 10, 16, "float32", "cpu", 320, "fake")
    inputs = make_zmq_socket(
        ctx, init.input_addresses[0], zmq.DEALER, bind=False, identity=args.engine_index.to_bytes(2, "little"), linger=2000
    )
    for socket in (handshake, inputs):
        socket.send_multipart(MsgpackEncoder().encode(response))
    os.read(args.death_fd, 1)  # until the parent has closed its end
    if mode == "outlives its parent":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
    return 0


if __name__ == "__main__":
    sys.exit(main())
