"""The clerk: one task that opens every bag and sorts it into the mailboxes.

Process: front end, on the event loop, for the whole life of an engine. Knows: the core client and the output processor. Does
not know: AsyncLLM, which can therefore be collected while this task runs.
Mirrors: vllm/v1/engine/async_llm.py (output_handler, abort)
"""

import asyncio
import contextvars
import logging
import os
from collections.abc import Sequence

from vllm_lite.config.checks import refuse
from vllm_lite.exceptions import EngineDeadError
from vllm_lite.frontend.core_client import Bag, EngineCoreClient
from vllm_lite.frontend.output_processor import OutputProcessor
from vllm_lite.frontend.stamps import Stamps
from vllm_lite.metrics.loggers import StatLoggerManager
from vllm_lite.metrics.stats import IterationStats

logger = logging.getLogger(__name__)

CHUNK_SIZE = "VLLM_LITE_OUTPUT_PROC_CHUNK_SIZE"
DEFAULT_CHUNK_SIZE = "128"


class OutputHandler:
    """Sorts bags until the engine is dead. `stat_logger` is told of each bag once; None: nothing is counted."""

    def __init__(
        self,
        engine_core: EngineCoreClient,
        output_processor: OutputProcessor,
        stamps: Stamps | None,
        stat_logger: StatLoggerManager | None = None,
    ) -> None:
        self._engine_core = engine_core
        self._output_processor = output_processor
        self._stamps = stamps
        self._stat_logger = stat_logger
        chunk_size = os.environ.get(CHUNK_SIZE, DEFAULT_CHUNK_SIZE)
        if not chunk_size.isdecimal() or int(chunk_size) == 0:
            raise refuse(CHUNK_SIZE, chunk_size, "an integer >= 1")
        self._chunk_size = int(chunk_size)

    def start(self) -> asyncio.Task[None]:
        """The task, in an empty context: it serves all requests, not the one that came first."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self.run(), name="output-handler", context=contextvars.Context())
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Nobody waits for a task that is gone, whoever cancelled it and whatever ended it."""
        how = "was cancelled" if task.cancelled() else "has ended"
        self._output_processor.propagate_error(EngineDeadError(f"the task that sorts the engine's outputs {how}"))

    async def run(self) -> None:
        """The task's body. Any error ends it and reaches every caller that waits."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._sort(await self._engine_core.get_bag_async())
        except EngineDeadError as error:
            if error.engine_index is not None:
                logger.error("the engine is dead: %s", error)
                if self._stamps is not None:
                    self._stamps.engine_dead(error.engine_index, str(error))
            self._output_processor.propagate_error(error)
        except Exception as error:
            if loop.is_closed():  # collected long after its loop: nobody waits any more
                return
            logger.exception("the output handler failed")
            self._output_processor.propagate_error(error)

    async def _sort(self, bag: Bag) -> None:
        """In slices, so that a large bag does not keep the loop from everything else."""
        outputs, rows = bag.outputs, bag.outputs.outputs
        stats = IterationStats() if self._stat_logger is not None and rows else None
        stamp = None if self._stamps is None else self._stamps.open_bag(outputs)
        for start in range(0, len(rows), self._chunk_size):
            if start:
                await asyncio.sleep(0)
            chunk = rows[start : start + self._chunk_size]
            version = outputs.weight_version
            processed = self._output_processor.process_outputs(chunk, outputs.timestamp, stats, stamp, version)
            if processed.reqs_to_abort:
                await send_abort(self._engine_core, processed.reqs_to_abort, "stop_string", self._stamps)
        if stamp is not None and self._stamps is not None:
            self._stamps.sort(stamp, bag)
        if self._stat_logger is not None:
            self._stat_logger.record(outputs.scheduler_stats, stats, engine_idx=outputs.engine_index)


async def send_abort(engine_core: EngineCoreClient, internal_ids: Sequence[str], reason: str, stamps: Stamps | None) -> None:
    """Tell the engine core to give requests up; nothing where it is dead."""
    if internal_ids and engine_core.dead_error is None:
        headers = None if stamps is None else stamps.abort(internal_ids, reason)
        await engine_core.abort_requests_async(internal_ids, reason, headers)
