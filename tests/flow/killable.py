"""`python -m tests.flow.killable MODEL`: front ends to be killed, forked from one process that has imported everything.

Each line of its input, `RUN_DIR FD`, is one: an engine with a worker process and an exporter, and callers. Into FD
goes the process id, then what the callers receive: `NAME TOKENS` for each letter, `NAME told` at the end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from vllm_lite import AsyncEngineArgs, AsyncLLM, EngineDeadError, RequestOutputKind, SamplingParams
from vllm_lite.config import VllmConfig
from vllm_lite.engine_core.executor.toy import ToyWorker
from vllm_lite.tracing.context import new_span_id, parse_traceparent
from vllm_lite.tracing.recorder import Recorder, now_ns
from vllm_lite.tracing.records import Work
from vllm_lite.wire.step import ModelRunnerOutput, SchedulerOutput

CALLERS = 6
LONG = SamplingParams(temperature=0, max_tokens=4000, ignore_eos=True, output_kind=RequestOutputKind.DELTA)


class RecordingWorker(ToyWorker):
    """Writes down each step, as a worker with a model does."""

    def __init__(self, vllm_config: VllmConfig, rank: int = 0) -> None:
        super().__init__(vllm_config, rank)
        self._recorder = Recorder(vllm_config.observability_config.trace_dir or "", "worker", "rank0")

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        self._plan, self._t0 = scheduler_output, now_ns()
        return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: None = None) -> ModelRunnerOutput:
        output, caller = super().sample_tokens(grammar_output), parse_traceparent(self._plan.step_trace)
        assert caller is not None
        times = self._t0, self._t0, now_ns(), now_ns()
        self._recorder.append(Work(self._plan.step, *caller[:2], new_span_id(), *times, None, 0))
        self._recorder.flush()
        return output


async def serve(model: str, run_dir: str, fd: int) -> None:
    args = AsyncEngineArgs(
        model=model,
        distributed_executor_backend="mp",
        additional_config={"worker_cls": "tests.flow.killable.RecordingWorker", "toy_step_time": 0.001},
        trace_level=2,
        trace_dir=run_dir,
        trace_keep=True,
        otlp_traces_endpoint="http://127.0.0.1:9",
    )
    engine = AsyncLLM.from_engine_args(args)
    os.write(fd, f"{os.getpid()}\n".encode())

    async def caller(name: str) -> None:
        try:
            async for output in engine.generate(list(b"prompt"), LONG, name):
                os.write(fd, f"{name} {len(output.outputs[0].token_ids)}\n".encode())
        except EngineDeadError:
            os.write(fd, f"{name} told\n".encode())

    await asyncio.gather(*(caller(f"caller-{number}") for number in range(CALLERS)))
    engine.shutdown()


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for who was killed
    for line in sys.stdin:
        run_dir, fd = line.split()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            asyncio.run(serve(sys.argv[1], run_dir, int(fd)))
            os._exit(0)
        os.close(int(fd))


if __name__ == "__main__":
    main()
