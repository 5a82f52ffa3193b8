"""A real engine core in a real child process, and this test as its front end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

from vllm_lite.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.messages import (
    ENGINE_CORE_DEAD,
    EngineCoreOutputs,
    EngineCoreReadyResponse,
    EngineCoreRequest,
    EngineCoreRequestType,
    EngineHello,
    EngineInit,
    EngineStartFailed,
)
from vllm_lite.wire.serial_utils import MsgpackDecoder, MsgpackEncoder
from vllm_lite.wire.sockets import ipc_folder, make_zmq_socket

WAIT_S = 30.0
VOCAB_SIZE = 320


def toy_config(**additional: Any) -> VllmConfig:
    config = VllmConfig(
        ModelConfig("toy", max_model_len=256, hf_config={"vocab_size": VOCAB_SIZE}),
        CacheConfig(block_size=4, num_gpu_blocks_override=100),
        SchedulerConfig(max_num_seqs=16),
        additional_config=additional,
    )
    config.parallel_config.distributed_executor_backend = "toy"
    return config


def add_letter(request_id: str, prompt: list[int], params: SamplingParams | None = None, **fields: Any) -> EngineCoreRequest:
    return EngineCoreRequest(request_id, prompt, None, params or SamplingParams(max_tokens=5), None, time.time(), **fields)


class CoreProcess:
    """Starts the child and shakes hands; `num_clients` front ends share this process."""

    def __init__(
        self, config: VllmConfig | bytes, num_clients: int = 1, engine_index: int = 0, coordinator: str | None = None
    ) -> None:
        self.coordinator = coordinator
        self.identity = engine_index.to_bytes(2, "little")
        self.folder = ipc_folder()
        self.ctx: zmq.Context[Any] = zmq.Context()
        self.handshake = self._bind("handshake", zmq.ROUTER)
        self.inputs = [self._bind(f"input{i}", zmq.ROUTER) for i in range(num_clients)]
        self.outputs = [self._bind(f"output{i}", zmq.PULL) for i in range(num_clients)]
        self.config = config if isinstance(config, bytes) else msgspec.msgpack.encode(config)
        read_end, self.death_pipe = os.pipe()
        command = [sys.executable, "-m", "vllm_lite.engine_core.proc", "--handshake", f"ipc://{self.folder}/handshake"]
        command += ["--engine-index", str(engine_index), "--death-fd", str(read_end)]
        self.child = subprocess.Popen(command, pass_fds=[read_end], stderr=subprocess.PIPE, text=True)
        os.close(read_end)

    def _bind(self, name: str, kind: int) -> zmq.Socket[Any]:
        return make_zmq_socket(self.ctx, f"ipc://{self.folder}/{name}", kind, bind=True)

    def start(self) -> EngineCoreReadyResponse:
        """Shake hands and wait for READY on every input socket."""
        self.shake_hands()
        for socket in self.inputs:
            identity, body = self.receive(socket)
            assert identity == self.identity
        return msgspec.msgpack.decode(body, type=EngineCoreReadyResponse)

    def shake_hands(self) -> EngineHello:
        identity, hello = self.receive(self.handshake)
        assert identity == self.identity
        addresses = [[f"ipc://{self.folder}/{kind}{i}" for i in range(len(self.inputs))] for kind in ("input", "output")]
        init = EngineInit(addresses[0], addresses[1], self.config, self.coordinator)
        self.handshake.send_multipart([identity, msgspec.msgpack.encode(init)])
        return msgspec.msgpack.decode(hello, type=EngineHello)

    def start_failure(self) -> EngineStartFailed:
        return msgspec.msgpack.decode(self.receive(self.handshake)[1], type=EngineStartFailed)

    def receive(self, socket: zmq.Socket[Any]) -> list[bytes]:
        assert socket.poll(WAIT_S * 1000), f"nothing came; the child's exit code is {self.child.poll()}"
        return socket.recv_multipart()

    def send(self, request_type: EngineCoreRequestType, body: Any, client: int = 0) -> None:
        self.send_raw([request_type.value, *MsgpackEncoder().encode(body)], client)

    def send_raw(self, frames: list[Any], client: int = 0) -> None:
        self.inputs[client].send_multipart([self.identity, *frames])

    def add(self, request_id: str, prompt: list[int], params: SamplingParams | None = None, **fields: Any) -> None:
        self.send(EngineCoreRequestType.ADD, add_letter(request_id, prompt, params, **fields), fields.get("client_index", 0))

    def utility(self, call_id: int, method: str, *args: Any) -> None:
        self.send(EngineCoreRequestType.UTILITY, [0, call_id, method, list(args)])

    def bag(self, client: int = 0) -> EngineCoreOutputs:
        frames = self.receive(self.outputs[client])
        assert frames[0] != ENGINE_CORE_DEAD, "the engine core said that it is dead"
        return MsgpackDecoder(EngineCoreOutputs).decode(frames)

    def answers(self, *request_ids: str, client: int = 0) -> dict[str, tuple[list[int], str, str | None]]:
        """(tokens, finish reason, error) of each request, once all of them have ended. Other rows are skipped."""
        tokens: dict[str, list[int]] = {request_id: [] for request_id in request_ids}
        ended: dict[str, tuple[list[int], str, str | None]] = {}
        while len(ended) < len(request_ids):
            for row in self.bag(client).outputs:
                if row.request_id in tokens:
                    tokens[row.request_id] += row.new_token_ids
                    if row.finish_reason is not None:
                        assert row.request_id not in ended
                        ended[row.request_id] = (tokens[row.request_id], str(row.finish_reason), row.error)
        return ended

    def wait(self) -> int:
        return self.child.wait(WAIT_S)

    def stop(self) -> str:
        """SIGTERM; the exit code must be 0. Returns what was written to stderr."""
        self.child.send_signal(signal.SIGTERM)
        assert self.wait() == 0
        assert self.child.stderr is not None
        return self.child.stderr.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.child.poll() is None:
            self.child.kill()
        if self.death_pipe >= 0:
            os.close(self.death_pipe)
        self.child.wait(WAIT_S)
        assert self.child.stderr is not None
        if error is not None:
            print(self.child.stderr.read())
        self.child.stderr.close()
        self.ctx.destroy(linger=0)
        shutil.rmtree(self.folder)
