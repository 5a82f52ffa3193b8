"""One engine for one command: started, asked, shut down, and its run looked at.

Process: front end. Knows: AsyncLLM, callers, views. Does not know: options.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from vllm_lite.console.banner import Banner
from vllm_lite.console.live import LiveAnswers
from vllm_lite.console.theme import DIM
from vllm_lite.engine_args import AsyncEngineArgs
from vllm_lite.entrypoints.cli import views
from vllm_lite.entrypoints.cli.callers import Call, Callers, Receipt
from vllm_lite.exceptions import EngineDeadError, VLLMValidationError
from vllm_lite.tracing.journey import Run, load_run

INTERRUPTED = 130


class Session:
    """Use as a context: entering starts the engine and prints the banner, leaving ends every process of it.

    `interrupted` is True once the user pressed Ctrl-C; what was recorded until then is still shown.
    """

    def __init__(self, console: Console, engine_args: AsyncEngineArgs, *, show_map: bool = False) -> None:
        self.console, self._engine_args, self._show_map = console, engine_args, show_map
        self.interrupted = False
        self.receipts: list[Receipt] = []

    def __enter__(self) -> Session:
        """Start the engine, before there is an event loop: Ctrl-C then ends the start at once."""
        from vllm_lite.frontend.async_llm import AsyncLLM  # most commands read a run and need no engine

        started = time.monotonic()
        self.console.print(Text(f"starting {self._engine_args.model} ...", DIM))
        self.engine = AsyncLLM.from_engine_args(self._engine_args)
        self._chat = self._has_chat_template()
        self.run_dir = Path(self.engine.observability_config.trace_dir or "")
        self._runner = asyncio.Runner()
        self.console.print(self._banner(time.monotonic() - started))
        return self

    def __exit__(self, *_: object) -> None:
        """Give up what is under way and end the engine."""
        try:
            self._runner.close()
        finally:
            self.engine.shutdown()

    def answer(self, calls: Sequence[Call], concurrency: int) -> None:
        """Make the calls and print their answers as they come."""
        self._runner.run(self._answer(calls, concurrency))

    async def _answer(self, calls: Sequence[Call], concurrency: int) -> None:
        with LiveAnswers(self.console, len(calls)) as screen:
            callers = Callers(self.engine, screen, self.run_dir, concurrency, chat=self._chat)
            try:
                await callers.make(calls)
            except asyncio.CancelledError:  # Ctrl-C; every caller has given up, and the journey so far is worth a look
                self.interrupted = True
            except ExceptionGroup as failed:  # it cannot be shown to anybody
                raise failed.exceptions[0] from None
            self.receipts += callers.receipts

    def settle(self) -> None:
        """Wait until the engine core has heard every abort and ended the step it was in: a round trip through its threads."""
        with contextlib.suppress(EngineDeadError):
            self._runner.run(self.engine.is_paused())

    @property
    def exit_code(self) -> int:
        """0 where every caller got what it wanted, 1 where one met an error, 130 after Ctrl-C."""
        if self.interrupted:
            return INTERRUPTED
        return int(any(receipt.kind == "error" for receipt in self.receipts))

    def recorded(self) -> Run | None:
        """The run so far, None (and a sentence on the screen) where no request was recorded."""
        with contextlib.suppress(FileNotFoundError):
            run = load_run(self.run_dir)
            if run.requests:
                return run
        off = not self.engine.observability_config.level
        why = ": the trace level is 0, and --level 1 to 3 records them" if off else f" in {self.run_dir}"
        self.console.print(Text(f"No request was traced{why}.", DIM))
        return None

    def show(self, names: Iterable[str] = views.VIEWS) -> None:
        """These views, how to see them again, and what ended the session before its time."""
        run = self.recorded()
        if run is not None and run.bags:
            views.show(self.console, dataclasses.replace(run, calls=[]), names)  # those are the session's own
            views.look_again(self.console, self.run_dir)
        if self.interrupted:
            where = "" if run is None else " What was recorded until then lies in the folder above."
            self.console.print(Text(f"Ended by Ctrl-C.{where}"))

    def _has_chat_template(self) -> bool:
        try:
            self.engine.renderer.render_chat([{"role": "user", "content": "?"}])
        except VLLMValidationError:
            return False
        return True

    def _banner(self, seconds: float) -> Banner:
        ready, config = self.engine.engine_core.ready, self.engine.vllm_config
        first, cores, workers = ready[0], [core.pid for core in ready], self._worker_pids()
        executor = config.parallel_config.distributed_executor_backend
        engine = f"{first.device}, {first.dtype}, {first.attention_backend}, executor {executor}"
        facts = [f"{engine}, ready after {seconds:.1f} s"]
        if not self._show_map or len(cores) > 1 or workers:
            named = {"front end": [os.getpid()], "engine core": cores, "worker": workers}
            parts = [f"{name}{'s' * (len(pids) > 1)} {', '.join(map(str, pids))}" for name, pids in named.items() if pids]
            facts.append(f"pids: {', '.join(parts)}")
        blocks, octets = sum(core.num_gpu_blocks for core in ready), sum(core.kv_cache_bytes for core in ready)
        size = f", {octets / (1 << 20):,.0f} MiB" if octets else ""
        facts.append(f"KV cache: {blocks:,} blocks of {first.block_size} tokens{size}")
        facts.append(f"trace level {config.observability_config.level}, run {self.run_dir}")
        model = config.model_config.served_model_name or config.model_config.model
        return Banner(model, facts, os.getpid(), cores, show_map=self._show_map)

    def _worker_pids(self) -> list[int]:
        """Of workers in processes of their own; where nothing is recorded they are not known."""
        with contextlib.suppress(FileNotFoundError):
            processes = load_run(self.run_dir).processes
            cores = {process.pid for process in processes if process.role == "engine-core"}
            return [process.pid for process in processes if process.role == "worker" and process.pid not in cores]
        return []
