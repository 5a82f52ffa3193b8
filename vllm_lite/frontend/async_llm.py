"""The engine as an asyncio program sees it: requests in, streams of outputs out, one background task between.

Process: front end. Knows: the order in which a request is checked, registered and sent, and what each ending means. Does not
know: torch, schedulers, or how text is made.
Mirrors: vllm/v1/engine/async_llm.py
"""

from __future__ import annotations

import asyncio
import copy
import logging
import weakref
from collections.abc import AsyncGenerator, Iterable, Mapping
from functools import partial
from typing import Any, Unpack

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import check_number, check_text, refuse
from vllm_lite.engine_args import AsyncEngineArgs
from vllm_lite.exceptions import EngineDeadError, EngineGenerateError, MaxQueuedTokensError, QueueOverflowError, VLLMClientError
from vllm_lite.frontend.admission_control import check_admission
from vllm_lite.frontend.collector import RequestOutputCollector
from vllm_lite.frontend.control import EngineControl
from vllm_lite.frontend.core_client import make_async_mp_client, note_place, take_ready
from vllm_lite.frontend.input_processor import InputProcessor, RequestOptions, arguments_of, check_options
from vllm_lite.frontend.output_handler import OutputHandler, send_abort
from vllm_lite.frontend.parallel_sampling import children_of
from vllm_lite.frontend.parts import EngineParts
from vllm_lite.frontend.protocol import AnyPrompt, CallOptions
from vllm_lite.frontend.renderer import Prompt
from vllm_lite.frontend.stamps import unsampled_headers
from vllm_lite.frontend.streaming_input import InputFeeder
from vllm_lite.metrics.loggers import StatLoggerFactory, StatLoggerManager, load_stat_logger_plugin_factories
from vllm_lite.outputs import STREAM_FINISHED, PoolingRequestOutput, RequestOutput
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.tracing.context import new_span_id
from vllm_lite.tracing.log import logged_as
from vllm_lite.tracing.recorder import now_ns
from vllm_lite.tracing.request_trace import RequestTrace
from vllm_lite.wire.messages import EngineCoreRequest

logger = logging.getLogger(__name__)


class AsyncLLM(EngineControl):
    """Serves many requests at once on one event loop.

    The constructor blocks until the engine is ready, and leaves nothing behind where it fails. It may be called before there is
    a loop; the background task then starts with the first request. Deleting the last reference ends the engine's processes.
    `executor_class` is an Executor that the engine core's process can import; None: the configuration picks one. `client_...`
    come from `launch_core_engines`: the engine that several front ends share is joined, and outlives this one. `usage_context`
    is reported to nobody. Requests and outputs belong to one loop.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        executor_class: type | None = None,
        log_stats: bool = True,
        *,
        usage_context: object | None = None,
        mm_registry: None = None,
        log_requests: bool = False,
        start_engine_loop: bool = True,
        stat_loggers: list[StatLoggerFactory] | None = None,
        aggregate_engine_logging: bool = False,
        client_addresses: dict[str, Any] | None = None,
        client_count: int = 1,
        client_index: int = 0,
    ) -> None:
        if mm_registry is not None:
            raise refuse("mm_registry", mm_registry, "None: multimodal prompts are not served")
        self.vllm_config = config = copy.deepcopy(vllm_config)  # it is completed below, and may serve for a second engine
        note_place(config, executor_class, client_addresses, client_count, client_index)
        self.model_config = config.model_config
        self.observability_config = config.observability_config
        self.log_requests = log_requests
        custom = [*(stat_loggers or ()), *load_stat_logger_plugin_factories()]
        self.log_stats = log_stats or bool(custom)
        self._warned_of_headers = False
        self._parts = parts = EngineParts()
        self._finalizer = weakref.finalize(self, EngineParts.close, parts)
        try:  # what is cheap and may refuse the configuration comes before the processes
            self.renderer, self.output_processor = parts.build_desk(config, log_stats=self.log_stats)
            self.input_processor = InputProcessor(config, self.renderer)
            self._stamps = parts.build_stamps(config, joined=client_addresses is not None)
            self.engine_core = parts.launch(lambda: make_async_mp_client(config, client_addresses))
            take_ready(config, self.engine_core.ready)
            self.logger_manager: StatLoggerManager | None = None
            if self.log_stats:  # once the engine is ready: a logger may want to know how large its KV cache is
                self.logger_manager = StatLoggerManager(
                    config,
                    range(len(self.engine_core.ready)),
                    custom,
                    enable_default_loggers=log_stats,
                    aggregate_engine_logging=aggregate_engine_logging,
                )
                self.logger_manager.log_engine_initialized()
            self._handler = OutputHandler(self.engine_core, self.output_processor, self._stamps, self.logger_manager)
            parts.started()
        except BaseException:
            self.shutdown(timeout=0)
            raise
        if start_engine_loop and asyncio._get_running_loop() is not None:
            self._run_output_handler()

    @classmethod
    def from_vllm_config(
        cls, vllm_config: VllmConfig, *, enable_log_requests: bool = False, disable_log_stats: bool = False, **options: Any
    ) -> AsyncLLM:
        """An engine of this configuration. The other options are the constructor's."""
        return cls(vllm_config, log_stats=not disable_log_stats, log_requests=enable_log_requests, **options)

    @classmethod
    def from_engine_args(cls, engine_args: AsyncEngineArgs, **options: Any) -> AsyncLLM:
        """An engine of these arguments. The other options are the constructor's."""
        return cls(
            engine_args.create_engine_config(),
            log_stats=not engine_args.disable_log_stats,
            log_requests=engine_args.enable_log_requests,
            aggregate_engine_logging=engine_args.aggregate_engine_logging,
            **options,
        )

    # ---- requests ----------------------------------------------------------------------------------------------------------

    def generate(
        self, prompt: AnyPrompt, sampling_params: SamplingParams, request_id: str, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[RequestOutput, None]:
        return self._outputs(request_id, prompt, sampling_params, SamplingParams, options)

    def encode(
        self, prompt: Prompt, pooling_params: PoolingParams, request_id: str, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        return self._outputs(request_id, prompt, pooling_params, PoolingParams, options)

    async def _outputs(
        self, request_id: str, prompt: AnyPrompt, params: Any, kind: type[SamplingParams | PoolingParams], options: CallOptions
    ) -> AsyncGenerator[Any, None]:
        """What a request's collector gets, until the last. Nothing happens before the first is asked for."""
        collector: RequestOutputCollector | None = None
        try:
            counts = prompt.sampling_params or prompt.pooling_params if isinstance(prompt, EngineCoreRequest) else params
            if not isinstance(counts, kind):
                accepted = f"{kind.__name__}; generate() takes SamplingParams, encode() PoolingParams"
                raise refuse("params", type(counts).__name__, accepted)
            collector = await self.add_request(request_id, prompt, params, **options)
            finished = False
            while not finished:
                output = await collector.get()  # no task switch where something lies there already
                finished = output.finished
                if output is not STREAM_FINISHED:
                    yield output
        except BaseException as error:
            with logged_as(None if collector is None or collector.trace is None else collector.trace.context):
                await self._end_early(error, request_id, collector)
            raise
        finally:
            if collector is not None:
                collector.close()

    async def _end_early(self, error: BaseException, request_id: str, collector: RequestOutputCollector | None) -> None:
        """The request ends with `error`: give it up where the engine core still has it. What the caller cannot mend becomes
        EngineGenerateError."""
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            if collector is not None:
                await self._give_up((collector.request_id,), "client_disconnect")
            self._log_request(request_id, "aborted by its caller")
            return
        self._log_request(request_id, "failed")
        known = (EngineDeadError, EngineGenerateError, VLLMClientError, QueueOverflowError, NotImplementedError)
        if isinstance(error, known) or not isinstance(error, Exception):
            return
        if collector is not None:
            if error is collector.input_error:
                return
            await self._give_up((collector.request_id,), "api")
        raise EngineGenerateError(f"request {request_id!r} failed: {error}") from error

    async def add_request(
        self,
        request_id: str,
        prompt: AnyPrompt,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        *,
        prompt_text: str | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        **options: Unpack[RequestOptions],
    ) -> RequestOutputCollector:
        """Check, register and send a request; its outputs come to the collector. On any failure, cancellation too, nothing of
        the request is left anywhere."""
        if isinstance(prompt, EngineCoreRequest):
            if request_id != prompt.request_id:
                raise refuse("request_id", request_id, f"that of the EngineCoreRequest, {prompt.request_id!r}")
            return await self.add_request(**arguments_of(prompt))
        trace_headers = self._usable_headers(trace_headers)
        trace = self._stamps.accept(request_id, params, trace_headers)
        with self._stamps.entering(trace):
            if self.errored:
                raise self.dead_error
            self._run_output_handler()
            if prompt_text is not None:
                check_text("prompt_text", prompt_text)
            check_options(options)  # before any of them meets an argument of `process_inputs`
            tasks = await self.get_supported_tasks()
            headers = trace_headers if trace is not None else unsampled_headers(trace_headers)

            async def make(
                prompt: Prompt, params: SamplingParams | PoolingParams, session_tokens: int | None = None
            ) -> tuple[EngineCoreRequest, str | None]:
                """Render and check; the request, and the text of its prompt where there is one. Part of a session: which has
                `session_tokens` already."""
                t0 = now_ns()
                rendered = await self.renderer.render_async(prompt, tokenization_kwargs)
                request = self.input_processor.process_inputs(
                    request_id,
                    rendered,
                    params,
                    supported_tasks=tasks,
                    arrival_time=None if session_tokens else arrival_time,
                    trace_headers=headers,
                    resumable=session_tokens is not None,
                    num_tokens_before=session_tokens or 0,
                    **options,
                )
                if trace is not None:
                    self._stamps.tokenise(trace, t0, len(rendered["prompt_token_ids"]))
                return request, rendered.get("prompt")

            if not isinstance(prompt, AsyncGenerator):
                request, text = await make(prompt, params)
                return await self._enter(request, prompt_text or text, trace)
            if prompt_text is not None:
                raise refuse("prompt_text", prompt_text, "None where the prompt comes in parts")
            feeder = InputFeeder(request_id, params, self.input_processor, self.output_processor, self.engine_core)
            self._admit(1)
            self._log_request(feeder.request_id, "opened")
            return feeder.start(prompt, make, partial(self._post, sample=0, trace=trace), trace, self._stamps)

    def _admit(self, n: int) -> None:
        try:
            self.check_admission(n)
        except QueueOverflowError as error:
            if self.logger_manager is not None:
                kind = "max_num_queued_tokens" if isinstance(error, MaxQueuedTokensError) else "max_num_queued_reqs"
                self.logger_manager.record_admission_rejection(kind)
            raise

    async def _enter(
        self, request: EngineCoreRequest, prompt_text: str | None, trace: RequestTrace | None
    ) -> RequestOutputCollector:
        """Admit, register and send the request, or all its children, or none."""
        self.input_processor.assign_request_id(request)
        collector = RequestOutputCollector(request.params.output_kind, request.request_id, trace, self._stamps)
        children, parent = children_of(request)
        self._admit(len(children))
        registered: list[str] = []
        try:
            for index, child in enumerate(children):
                self.output_processor.add_request(child, prompt_text, collector, parent, index)
                registered.append(child.request_id)
            for index, child in enumerate(children):
                await self._post(child, index, trace)
        except BaseException as error:
            await self._give_up(registered, "client_disconnect" if isinstance(error, asyncio.CancelledError) else "api")
            raise
        self._log_request(request.request_id, "added")
        return collector

    async def _post(self, request: EngineCoreRequest, sample: int, trace: RequestTrace | None) -> None:
        if trace is None:
            await self.engine_core.add_request_async(request)
            return
        span_id = new_span_id()
        request.trace_headers = trace.headers(request.trace_headers, span_id)
        t0 = now_ns()
        posted = await self.engine_core.add_request_async(request)
        self._stamps.post(trace, request.request_id, t0=t0, span_id=span_id, sample=sample, posted=posted)

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        """As EngineClient says; `internal` ids are the engine's own."""
        single = isinstance(request_id, str) or not isinstance(request_id, Iterable)
        request_ids: Iterable[object] = (request_id,) if single else request_id
        checked = [check_text("request_id", one, "a string, or several") for one in request_ids]
        await self._give_up(checked, "api", internal=internal)

    async def _give_up(self, request_ids: Iterable[str], reason: str, *, internal: bool = True) -> None:
        """First here, so that whatever still comes finds nobody; then there."""
        internal_ids = self.output_processor.abort_requests(request_ids, internal)
        await send_abort(self.engine_core, internal_ids, reason, self._stamps)

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        processor = self.output_processor
        limits = self.vllm_config.scheduler_config
        check_admission(limits, n, processor.get_num_unfinished_requests(), processor.get_num_queued_tokens())

    def _run_output_handler(self) -> None:
        """Start the background task, once."""
        if self._parts.handler_task is None:
            self._parts.handler_task = self._handler.start()

    def _usable_headers(self, trace_headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
        if not trace_headers:
            return None
        if not isinstance(trace_headers, Mapping) or not all(
            isinstance(part, str) for item in trace_headers.items() for part in item
        ):
            raise refuse("trace_headers", trace_headers, "a mapping from header names to values, all strings")
        if self._stamps.level:
            return trace_headers
        if not self._warned_of_headers:
            self._warned_of_headers = True
            logger.warning("a request brought trace headers and tracing is off: headers are dropped from now on")
        return None

    def _log_request(self, request_id: str, what: str) -> None:
        if self.log_requests:
            logger.info("request %s %s", request_id, what)

    def shutdown(self, timeout: float | None = None) -> None:
        if timeout is not None:
            check_number("timeout", timeout, 0)
        if self._finalizer.detach():
            self._parts.close(timeout)
