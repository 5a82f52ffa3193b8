"""The engine for a program without an event loop: requests in, then step by step until every one is answered.

Process: front end. Knows: the same parts as AsyncLLM, and a client that needs no loop. Does not know: tasks, or many callers:
one thread uses it.
Mirrors: vllm/v1/engine/llm_engine.py
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import check_bool, check_number
from vllm_lite.engine_args import EngineArgs
from vllm_lite.exceptions import EngineDeadError
from vllm_lite.frontend.collector import RequestOutputCollector
from vllm_lite.frontend.control import rpc_arguments
from vllm_lite.frontend.core_client import Bag, make_client, take_ready
from vllm_lite.frontend.input_processor import InputProcessor, RequestOptions, check_options
from vllm_lite.frontend.parallel_sampling import children_of
from vllm_lite.frontend.parts import EngineParts
from vllm_lite.frontend.renderer import Prompt
from vllm_lite.frontend.stamps import Stamps, unsampled_headers
from vllm_lite.outputs import PoolingRequestOutput, RequestOutput
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.tracing.context import new_span_id
from vllm_lite.tracing.recorder import now_ns
from vllm_lite.tracing.request_trace import RequestTrace
from vllm_lite.wire.messages import EngineCoreRequest


class LLMEngine:
    """The engine core runs in a process of its own, or in this one where `multiprocess_mode` is off.

    The constructor blocks until the engine is ready, and leaves nothing behind where it fails. Deleting the last reference ends
    the engine.
    """

    def __init__(self, vllm_config: VllmConfig, *, multiprocess_mode: bool = True) -> None:
        self.vllm_config = config = copy.deepcopy(vllm_config)  # it is completed below, and may serve for a second engine
        self.model_config = config.model_config
        self._mailboxes: dict[str, RequestOutputCollector] = {}
        self._parts = parts = EngineParts()
        self._finalizer = weakref.finalize(self, EngineParts.close, parts)
        try:
            self.renderer, self.output_processor = parts.build_desk(config, log_stats=False)
            self.input_processor = InputProcessor(config, self.renderer)
            self._stamps: Stamps | None = parts.build_stamps(config) if multiprocess_mode else None
            self.engine_core = parts.launch(lambda: make_client(config, multiprocess_mode=multiprocess_mode))
            take_ready(config, self.engine_core.ready)
            parts.started()
        except BaseException:
            self.shutdown(timeout=0)
            raise

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, *, enable_multiprocessing: bool = True) -> LLMEngine:
        """An engine of these options."""
        return cls(engine_args.create_engine_config(), multiprocess_mode=enable_multiprocessing)

    # ---- requests ----------------------------------------------------------------------------------------------------------

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | PoolingParams,
        *,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        **options: Unpack[RequestOptions],
    ) -> str:
        """Check, register and hand over a request; returns its internal id. Where that fails nothing of it is left."""
        stamps = self._stamps
        trace = None if stamps is None else stamps.accept(request_id, params, trace_headers)
        with contextlib.nullcontext() if stamps is None else stamps.entering(trace):
            check_options(options)
            t0 = now_ns()
            rendered = self.renderer.render(prompt, tokenization_kwargs)
            request = self.input_processor.process_inputs(
                request_id,
                rendered,
                params,
                supported_tasks=self.engine_core.ready[0].supported_tasks,
                trace_headers=trace_headers if trace is not None else unsampled_headers(trace_headers),
                **options,
            )
            if trace is not None and stamps is not None:
                stamps.tokenise(trace, t0, len(rendered["prompt_token_ids"]))
            self.input_processor.assign_request_id(request)
            mailbox = RequestOutputCollector(request.params.output_kind, request.request_id, trace, stamps)
            self._enter(request, rendered.get("prompt"), mailbox)
        self._mailboxes[request.request_id] = mailbox
        return request.request_id

    def _enter(self, request: EngineCoreRequest, prompt: str | None, mailbox: RequestOutputCollector) -> None:
        """Register and post the request, or all its children, or none."""
        children, parent = children_of(request)
        registered: list[str] = []
        try:
            for index, child in enumerate(children):
                self.output_processor.add_request(child, prompt, mailbox, parent, index)
                registered.append(child.request_id)
            for index, child in enumerate(children):
                self._post(child, index, mailbox.trace)
        except BaseException:
            self._give_up(registered)
            raise

    def _post(self, request: EngineCoreRequest, sample: int, trace: RequestTrace | None) -> None:
        if trace is None or self._stamps is None:
            self.engine_core.add_request(request)
            return
        span_id, t0 = new_span_id(), now_ns()
        request.trace_headers = trace.headers(request.trace_headers, span_id)
        posted = self.engine_core.add_request(request)
        self._stamps.post(trace, request.request_id, t0=t0, span_id=span_id, sample=sample, posted=posted)

    def abort_request(self, request_ids: Iterable[str]) -> None:
        """Give requests up, by internal id; `step` gives nothing of them any more."""
        for internal_id in request_ids:
            self._give_up([internal_id])
            mailbox = self._mailboxes.pop(internal_id, None)
            if mailbox is not None:
                mailbox.close()

    def _give_up(self, request_ids: Iterable[str]) -> None:
        self._send_abort(self.output_processor.abort_requests(request_ids, internal=True), "api")

    def _send_abort(self, internal_ids: list[str], reason: str) -> None:
        if internal_ids and self.engine_core.dead_error is None:
            headers = None if self._stamps is None else self._stamps.abort(internal_ids, reason)
            self.engine_core.abort_requests(internal_ids, reason, headers)

    def has_unfinished_requests(self) -> bool:
        """True while `step` has something to wait for."""
        return bool(self._mailboxes)

    def get_num_unfinished_requests(self) -> int:
        """Requests in the engine, each of n > 1 counted."""
        return self.output_processor.get_num_unfinished_requests()

    # ---- a step ------------------------------------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput | PoolingRequestOutput]:
        """Wait for one bag and give out what it holds; nothing where no request is in the engine.

        Raises EngineDeadError where the engine died, and whatever the front end met at one request, which is then gone.
        """
        if not self._mailboxes:
            return []
        try:
            self._sort(self.engine_core.get_bag())
        except EngineDeadError as error:
            self.output_processor.propagate_error(error)
            self._mailboxes.clear()
            raise
        outputs = []
        for internal_id, mailbox in list(self._mailboxes.items()):
            try:
                output = mailbox.get_nowait()
            except Exception:
                del self._mailboxes[internal_id]
                raise
            if output is not None:
                outputs.append(output)
                if output.finished:
                    del self._mailboxes[internal_id]
        return outputs

    def _sort(self, bag: Bag) -> None:
        outputs, stamps = bag.outputs, self._stamps
        stamp = None if stamps is None else stamps.open_bag(outputs)
        processed = self.output_processor.process_outputs(outputs.outputs, stamp=stamp, weight_version=outputs.weight_version)
        self._send_abort(processed.reqs_to_abort, "stop_string")
        if stamp is not None and stamps is not None:
            stamps.sort(stamp, bag)

    # ---- the rest ----------------------------------------------------------------------------------------------------------

    def collective_rpc(
        self, method: str, timeout: float | None = None, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> list[Any]:
        """Call `method` of every worker; their results in rank order. RuntimeError with the core's words where it failed."""
        results: list[Any] = self.engine_core.call_utility("collective_rpc", *rpc_arguments(method, timeout, args, kwargs))
        return results

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes; False where requests still hold blocks and may not be computed again."""
        check_bool("reset_running_requests", reset_running_requests)
        return bool(self.engine_core.call_utility("reset_prefix_cache", reset_running_requests))

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine, in order for `timeout` seconds (5 where None), then by force. May be called more than once."""
        if timeout is not None:
            check_number("timeout", timeout, 0)
        if self._finalizer.detach():
            self._parts.close(timeout)
