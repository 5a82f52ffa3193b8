"""What an engine is made of on this side of the wire, what it must give back when it goes, and how.

Process: front end. Knows: the parts. Does not know: AsyncLLM or LLMEngine, which it outlives for the moment in which that is
collected.
Mirrors: vllm/v1/engine/async_llm.py (shutdown)
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from vllm_lite.config import VllmConfig
from vllm_lite.exceptions import EngineDeadError
from vllm_lite.frontend.core_client import EngineCoreClient, SyncEngineCoreClient
from vllm_lite.frontend.output_processor import OutputProcessor
from vllm_lite.frontend.renderer import Renderer
from vllm_lite.frontend.stamps import Stamps
from vllm_lite.frontend.trace_run import TraceRun
from vllm_lite.tracing.recorder import now_ns

Client = TypeVar("Client", EngineCoreClient, SyncEngineCoreClient)


class EngineParts:
    """Filled as the parts are built, so that a constructor that fails half-way can give back what there is."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._t_start = self._t_desk = self._t_launched = now_ns()
        self.renderer: Renderer | None = None
        self.output_processor: OutputProcessor | None = None
        self.trace_run: TraceRun | None = None
        self.stamps: Stamps | None = None
        self.engine_core: EngineCoreClient | SyncEngineCoreClient | None = None
        self.handler_task: asyncio.Task[None] | None = None
        self.drain_seconds = 0.0  # for requests in flight, where their loop runs while this closes

    def build_desk(self, vllm_config: VllmConfig, *, log_stats: bool) -> tuple[Renderer, OutputProcessor]:
        """Where prompts are rendered and answers sorted."""
        self.renderer = Renderer.from_config(vllm_config)
        self._t_desk = now_ns()
        self.drain_seconds = vllm_config.shutdown_timeout
        stream_interval = vllm_config.scheduler_config.stream_interval
        self.output_processor = OutputProcessor(self.renderer.tokenizer, log_stats=log_stats, stream_interval=stream_interval)
        return self.renderer, self.output_processor

    def build_stamps(self, vllm_config: VllmConfig, *, joined: bool = False) -> Stamps:
        """The run directory, which the configuration then names (before, where the run is `joined`), and this process's
        recorder."""
        observability, model_config = vllm_config.observability_config, vllm_config.model_config
        if not joined:
            self.trace_run = TraceRun(observability)
            observability.trace_dir = str(self.trace_run.path)
        self.stamps = Stamps(Path(str(observability.trace_dir)), model_config.served_model_name or model_config.model)
        self.stamps.phase("load_tokenizer", self._t_start, self._t_desk)
        return self.stamps

    def launch(self, make: Callable[[], Client]) -> Client:
        """The client of engine cores that are ready; its calls are noted from now on."""
        t0 = now_ns()
        self.engine_core = client = make()
        self._t_launched = now_ns()
        if self.stamps is not None:
            self.stamps.phase("launch", t0, self._t_launched)
            client.note_calls(self.stamps.call)
        return client

    def started(self) -> None:
        """Requests can come."""
        if self.stamps is not None:
            self.stamps.phase("ready", self._t_launched)
            self.stamps.phase("engine.start", self._t_start)

    def close(self, timeout: float | None = None) -> None:
        """End the task, the callers that still wait, the processes. From any thread, or with no loop left; once is enough."""
        if os.getpid() != self._owner:  # a fork of the process that owns them
            return
        t0 = now_ns()
        with contextlib.ExitStack() as last_first:  # each goes whatever befalls the others
            if self.trace_run is not None:
                last_first.callback(self.trace_run.close)
            if self.engine_core is not None:
                last_first.callback(self.engine_core.shutdown, timeout)
            if self.renderer is not None:
                last_first.callback(self.renderer.shutdown)
            loop = None if self.handler_task is None else self.handler_task.get_loop()
            if loop is None or not loop.is_running() or asyncio._get_running_loop() is loop:
                self._end_tasks(t0)
            else:
                if timeout is None:
                    self._drain()
                loop.call_soon_threadsafe(self._end_tasks, t0)

    def _drain(self) -> None:
        """Let requests in flight end, for `drain_seconds`; not on their own loop, which would stand still meanwhile."""
        processor, core = self.output_processor, self.engine_core
        deadline = time.monotonic() + self.drain_seconds
        while processor is not None and core is not None and time.monotonic() < deadline:
            if not processor.has_unfinished_requests() or core.dead_error is not None:
                return
            time.sleep(0.01)

    def _end_tasks(self, t0: int) -> None:
        task = self.handler_task
        loop = None if task is None else task.get_loop()
        with contextlib.ExitStack() as last:
            if self.stamps is not None:
                last.callback(self.stamps.shutdown, t0)
            if loop is not None and loop.is_closed():  # nobody waits any more
                return
            if self.output_processor is not None:
                self.output_processor.propagate_error(EngineDeadError("the engine was shut down"))
            if task is not None and loop is not None:
                task.cancel()
                if asyncio._get_running_loop() is None:  # a pending task that meets the interpreter's end can crash it
                    loop.run_until_complete(asyncio.wait([task]))
