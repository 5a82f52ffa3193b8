"""The engine core as a process: a busy loop between an input and an output thread.

Process: engine core, main thread. Knows: its queues, the steps, how to end. Does not know: frames or sockets (the threads do),
nor how the process was started (`engine_core.proc` does).
Mirrors: vllm/v1/engine/core.py (EngineCoreProc)
"""

import contextlib
import logging
import queue
import time
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any

import zmq

from vllm_lite.config import VllmConfig
from vllm_lite.engine_core.core.engine_core import EngineCore
from vllm_lite.engine_core.core.io_threads import (
    COORDINATOR,
    CoreQueues,
    InputThread,
    OutputItem,
    OutputThread,
    Rejected,
    UtilityCall,
)
from vllm_lite.engine_core.executor.abstract import Executor
from vllm_lite.engine_core.request import Request
from vllm_lite.exceptions import VLLMClientError
from vllm_lite.tracing.recorder import now_ns
from vllm_lite.wire.messages import (
    ENGINE_CORE_DEAD,
    EngineCoreAbort,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequestType,
    EngineInit,
    FinishReason,
    UtilityOutput,
)
from vllm_lite.wire.stats import SchedulerStats

logger = logging.getLogger(__name__)

UTILITY_METHODS = frozenset(
    {
        "collective_rpc",
        "get_supported_tasks",
        "get_weight_version",
        "is_scheduler_paused",
        "is_sleeping",
        "pause_scheduler",
        "profile",
        "release_kv_cache_memory",
        "reset_prefix_cache",
        "resume_scheduler",
        "set_weight_version",
        "sleep",
        "wake_up",
    }
)
# Parts of a step: how long an engine that slept waits for one more request, and for all of them.
NEXT_COMPANY, MOST_COMPANY = 1 / 30, 1 / 4
NEXT_COMPANY_S = 0.02  # at most


class EngineCoreProc(EngineCore):
    """Serves front ends until `request_shutdown()` or a failure.

    `init` says where their sockets are; each hears READY first. `ctx` is terminated by `shutdown()`.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        executor_class: type[Executor],
        engine_index: int,
        ctx: zmq.Context[Any],
        init: EngineInit,
    ) -> None:
        self.engine_index = engine_index
        self.input_queue: SimpleQueue[tuple[EngineCoreRequestType, Any]] = SimpleQueue()
        self.output_queue: SimpleQueue[OutputItem | bytes | None] = SimpleQueue()
        self._last_step_s = 0.0
        self._shutdown_requested = False
        self._t_shutdown = 0
        self._ctx = ctx
        super().__init__(vllm_config, executor_class, self._on_executor_failure)
        addresses = dict(enumerate(init.output_addresses))
        self._load_said: tuple[int, int] | None = None  # None: to nobody
        if init.coordinator_address is not None:
            self._load_said, addresses[COORDINATOR] = (0, 0), init.coordinator_address
        queues = CoreQueues(self.input_queue, self.aborts_queue, self.output_queue)
        trace_dir = vllm_config.observability_config.trace_dir
        self._output_thread = OutputThread(ctx, addresses, engine_index, queues, trace_dir=trace_dir)
        self._input_thread = InputThread(
            ctx, init.input_addresses, self.ready(), self.preprocess_add_request, queues, trace_dir=trace_dir
        )

    # ---- the loop ------------------------------------------------------------------------------------------------------------

    def run_busy_loop(self) -> None:
        """Say READY, take in letters and run steps until shutdown is requested. Raises what makes the engine unusable.

        Then requests get `shutdown_timeout` seconds to end; new ones are aborted.
        """
        self._output_thread.start()
        self._input_thread.start()
        time_to_end = self.vllm_config.shutdown_timeout * 1e9
        while True:
            self._process_input_queue()
            if self._shutdown_requested and (not self.has_work() or now_ns() >= self._t_shutdown + time_to_end):
                break
            self._tell_coordinator()
            self._process_engine_step()
            self._tell_coordinator()
        self.tell_aborted(self.abort_requests(None, "shutdown"))
        self.fail_idle_actions("the engine is shutting down")
        self.step_tracer.phase("drain", self._t_shutdown)

    def request_shutdown(self) -> None:
        """End the loop as soon as requests have ended or had their time; may be called from another thread."""
        self._t_shutdown = now_ns()
        self._shutdown_requested = True
        self.input_queue.put((EngineCoreRequestType.WAKEUP, None))

    def _process_input_queue(self) -> None:
        """Handle what has arrived; with nothing to schedule, sleep until something does."""
        idle = not self.has_work()
        while not self.has_work() and not self._shutdown_requested:
            if self.input_queue.empty():
                self._process_aborts_queue()  # all of them came through the input queue too; let none wait for the next step
            self._handle_client_request(*self.input_queue.get())
        if idle:
            self._await_company()
        while not self.input_queue.empty():
            self._handle_client_request(*self.input_queue.get())

    def _await_company(self) -> None:
        """Requests come in bursts: the first one of them would have a step to itself, and all others would wait for its end. So
        after a sleep the next step waits for a small part of what the last one took, as long as more keep coming."""
        deadline = time.monotonic() + self._last_step_s * MOST_COMPANY
        patience = min(self._last_step_s * NEXT_COMPANY, NEXT_COMPANY_S)
        with contextlib.suppress(queue.Empty):
            while time.monotonic() < deadline:
                self._handle_client_request(*self.input_queue.get(timeout=patience))

    def _process_engine_step(self) -> None:
        t0 = time.monotonic()
        bags = self.step()
        if any(outputs.outputs for outputs in bags.values()):
            self._last_step_s = time.monotonic() - t0
        parent_span_id = self.step_tracer.step_span_id
        t_queued = now_ns() if parent_span_id is not None else 0
        for client_index, outputs in bags.items():
            self.output_queue.put(OutputItem(client_index, outputs, parent_span_id, t_queued))
        self.run_idle_actions()

    def _tell_coordinator(self) -> None:
        """Say how many requests there are, where that is another number than before."""
        scheduler = self.scheduler
        load = len(scheduler.running), len(scheduler.waiting)
        if self._load_said not in (None, load):
            self._load_said = load
            stats = SchedulerStats(*load, scheduler.kv_cache_manager.usage)
            self.output_queue.put(OutputItem(COORDINATOR, EngineCoreOutputs(scheduler_stats=stats)))

    def flush_step(self) -> None:
        """Run a step that has no request; its statistics still go out."""
        self._process_engine_step()

    def _handle_client_request(self, request_type: EngineCoreRequestType, payload: Any) -> None:
        if request_type is EngineCoreRequestType.ADD:
            if isinstance(payload, Rejected):
                self._reject(payload)
            else:
                self._add(payload)
        elif request_type is EngineCoreRequestType.ABORT:
            abort: EngineCoreAbort = payload
            self.abort_requests(abort.request_ids, abort.reason)
        elif request_type is EngineCoreRequestType.UTILITY:
            self._call_utility(payload)
        elif request_type is EngineCoreRequestType.CLIENT_GONE:
            requests = self.scheduler.requests.values()
            self.abort_requests([r.request_id for r in requests if r.client_index == payload], "client_disconnect")
            self.output_queue.put(OutputItem(payload, None))
        elif request_type is EngineCoreRequestType.EXECUTOR_FAILED:
            self.model_executor.check_health()  # it may say more
            raise RuntimeError(payload)

    def _reject(self, rejected: Rejected) -> None:
        logger.info("request %s was rejected: %s", rejected.request_id, rejected.error)
        if rejected.trace is not None:
            self.step_tracer.leave(rejected.trace, rejected.request_id, "error", "waiting")
        self._send_end(rejected.client_index, rejected.request_id, FinishReason.ERROR, rejected.error)

    def _add(self, request: Request) -> None:
        ended = request.continues and request.request_id not in self.scheduler.requests  # its session, by an ABORT sent later
        if ended or self._shutdown_requested:
            if request.trace is not None:
                self.step_tracer.leave(request.trace, request.request_id, "api" if ended else "shutdown", "waiting")
            if not ended:
                self.tell_aborted([request])
            return
        try:
            self.add_request(request)
        except ValueError as error:  # a live request owns this id; under the same client an answer would end the wrong one
            logger.error("dropped a request: %s", error)
            if self.scheduler.requests[request.request_id].client_index != request.client_index:
                self._send_end(request.client_index, request.request_id, FinishReason.ERROR, str(error))

    def _call_utility(self, call: UtilityCall) -> None:
        """Run it and answer; a Future answers when it is done."""
        result: Future[Any] = Future()
        t0 = now_ns()
        try:
            if call.method not in UTILITY_METHODS:
                raise NotImplementedError(f"the engine core has no method {call.method!r}")
            if self._shutdown_requested:
                raise RuntimeError("the engine is shutting down")
            value = getattr(self, call.method)(*call.args)
            if isinstance(value, Future):
                result = value
            else:
                result.set_result(value)
        except Exception as error:
            in_a_sentence = type(error) is RuntimeError or isinstance(error, VLLMClientError | NotImplementedError)
            detailed = not in_a_sentence or logger.isEnabledFor(logging.DEBUG)
            logger.error("utility call %s failed: %s", call.method, _sayable(error), exc_info=detailed)
            result.set_exception(error)
        result.add_done_callback(partial(self._answer_utility, call, t0))

    def _answer_utility(self, call: UtilityCall, t0: int, result: Future[Any]) -> None:
        answer, error = UtilityOutput(call.call_id), _sayable(result.exception())
        self.step_tracer.served(call, t0, error)
        if error is None:
            answer.result = result.result()
        else:
            answer.failure_message = f"Call to {call.method} method failed: {type(error).__name__}: {error}"
        self.output_queue.put(OutputItem(call.client_index, EngineCoreOutputs(utility_output=answer)))

    # ---- the end -------------------------------------------------------------------------------------------------------------

    def tell_aborted(self, requests: list[Request]) -> None:
        """Send each caller the end of its request."""
        for request in requests:
            self._send_end(request.client_index, request.request_id, FinishReason.ABORT)

    def _send_end(self, client_index: int, request_id: str, reason: FinishReason, error: str | None = None) -> None:
        row = EngineCoreOutput(request_id, [], finish_reason=reason, error=error)
        self.output_queue.put(OutputItem(client_index, EngineCoreOutputs(outputs=[row])))

    def _on_executor_failure(self) -> None:
        """End the loop with an error; called from another thread."""
        self.input_queue.put((EngineCoreRequestType.EXECUTOR_FAILED, "the executor failed"))

    def shutdown(self, error: BaseException | None = None) -> None:
        """Free the workers, send what is queued (and, after an `error`, that the engine is dead), end both threads."""
        if self._output_thread.is_alive():
            if error is not None:
                self.output_queue.put(ENGINE_CORE_DEAD)
            self.output_queue.put(None)
            self._output_thread.join()
        super().shutdown(error)
        self._ctx.term()
        self._input_thread.join()


def _sayable(error: BaseException | None) -> BaseException | None:
    """The error, or one that stands for it where it cannot say what it is."""
    try:
        str(error)
    except Exception as failure:
        return RuntimeError(f"{type(error).__name__}, and saying why failed: {type(failure).__name__}")
    return error
