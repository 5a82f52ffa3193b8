"""Offline answers: a list of prompts in, a list of outputs back, in the same order.

Process: front end. Knows: LLMEngine, the progress bar. Does not know: event loops.
Mirrors: vllm/entrypoints/llm.py
"""

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from vllm_lite.config.checks import check_mapping, check_text, refuse
from vllm_lite.engine_args import EngineArgs
from vllm_lite.frontend.control import checked_tags, sleep_arguments
from vllm_lite.frontend.llm_engine import LLMEngine
from vllm_lite.frontend.protocol import PauseMode
from vllm_lite.frontend.renderer import ChatMessage, Prompt
from vllm_lite.frontend.tokenizer import Tokenizer
from vllm_lite.outputs import PoolingRequestOutput, RequestOutput
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams

MULTIPROCESSING = "VLLM_LITE_ENABLE_V1_MULTIPROCESSING"
BAR = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), "{task.fields[speed]}")
Params = TypeVar("Params", SamplingParams, PoolingParams)
Output = RequestOutput | PoolingRequestOutput


class LLM:
    """A model for a program that asks and waits. `options` are those of EngineArgs, under their names.

    The constructor blocks until the engine is ready. Threads that share it take turns. Deleting the last reference ends it.
    """

    def __init__(self, model: str = EngineArgs.model, **options: Any) -> None:
        in_a_process = os.environ.get(MULTIPROCESSING, "1") not in ("", "0")
        self.llm_engine = LLMEngine.from_engine_args(EngineArgs(model, **options), enable_multiprocessing=in_a_process)
        self._count = 0
        self._asleep = False  # not quite awake: an answer would not come
        self._turn = threading.Lock()  # steps are one caller's at a time
        self._core_turn = contextlib.nullcontext() if in_a_process else self._turn  # what steps here is not disturbed by calls

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: object | None = None,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """The answer to each prompt. One set of parameters serves all, or there is one for each; likewise `priority`.

        `use_tqdm` shows how far it is, on standard error. Raises VLLMValidationError where a prompt or its parameters are
        refused, and then answers none. A request that failed in the engine has an output with finish_reason "error".
        """
        asked = _as_list(prompts)
        params = [_final(one) for one in _for_each("sampling_params", sampling_params, SamplingParams, len(asked))]
        options = {"lora_request": lora_request, "tokenization_kwargs": tokenization_kwargs}
        outputs = self._answer(asked, params, options, priority, show="answers" if use_tqdm else None)
        return [output for output in outputs if isinstance(output, RequestOutput)]

    def chat(
        self,
        messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        lora_request: object | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """The model's next turn in each conversation; `messages` is one conversation or a list of them."""
        if not isinstance(messages, list | tuple):
            raise refuse("messages", messages, "a list of chat messages, or a list of such lists")
        options = {} if chat_template_kwargs is None else chat_template_kwargs
        check_mapping("chat_template_kwargs", options)
        options = {"chat_template": chat_template, "add_generation_prompt": add_generation_prompt, "tools": tools, **options}
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        prompts = [self.llm_engine.renderer.render_chat(conversation, **options) for conversation in conversations]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request)

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: object | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PoolingRequestOutput]:
        """The vector of each prompt: `outputs.data`, float32 [hidden_size]."""
        asked = _as_list(prompts)
        params = _for_each("pooling_params", pooling_params, PoolingParams, len(asked))
        options = {"lora_request": lora_request, "tokenization_kwargs": tokenization_kwargs}
        outputs = self._answer(asked, params, options, None, show="vectors" if use_tqdm else None)
        return [output for output in outputs if isinstance(output, PoolingRequestOutput)]

    def get_tokenizer(self) -> Tokenizer:
        """The tokenizer; VLLMValidationError with skip_tokenizer_init."""
        return self.llm_engine.renderer.get_tokenizer()

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Call `method` of every worker; their results in rank order."""
        with self._core_turn:
            return self.llm_engine.collective_rpc(method, timeout, args, kwargs)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes."""
        with self._core_turn:
            return self.llm_engine.reset_prefix_cache(reset_running_requests)

    def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Pause and free memory until `wake_up`: 1 keeps the weights in host memory, 2 drops them, both free the KV cache."""
        arguments = sleep_arguments(level, mode)
        self._asleep = True
        self._call("sleep", *arguments)

    def wake_up(self, tags: list[str] | None = None) -> bool:
        """Take memory back: "weights", "kv_cache", or both; True, and the engine goes on, where nothing sleeps any more."""
        self._asleep = not self._call("wake_up", checked_tags(tags))
        return not self._asleep

    def start_profile(self, profile_prefix: str | None = None) -> None:
        """Let every worker write down what it does, until `stop_profile`."""
        check_text("profile_prefix", profile_prefix, optional=True)
        self._call("profile", True, profile_prefix)

    def stop_profile(self) -> None:
        """End the profiles; the workers' log says which files hold them."""
        self._call("profile", False)

    def _call(self, method: str, *args: Any) -> Any:
        """Call a method of the engine core. RuntimeError with its words where it failed."""
        with self._core_turn:
            return self.llm_engine.engine_core.call_utility(method, *args)

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine now, and not when the last reference goes. May be called more than once."""
        self.llm_engine.shutdown(timeout)

    def _check_awake(self) -> None:
        if self._asleep:
            raise RuntimeError("no request can go on while the engine is asleep: call wake_up() first")

    def _answer(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams | PoolingParams],
        options: dict[str, Any],
        priority: Sequence[int] | None,
        show: str | None,
    ) -> list[Output]:
        """All outputs in the order of their prompts; on any failure, Ctrl-C too, no request is left in the engine."""
        if priority is not None and (not isinstance(priority, list | tuple) or len(priority) != len(prompts)):
            raise refuse("priority", priority, f"None or a list of one for each prompt, of which there are {len(prompts)}")
        levels = [0] * len(prompts) if priority is None else priority
        internal_ids: list[str] = []
        self._check_awake()  # whose turn it is may sleep too
        with self._turn:
            self._check_awake()
            names = [str(self._count + i) for i in range(len(prompts))]
            self._count += len(prompts)
            try:
                for name, prompt, one, level in zip(names, prompts, params, levels, strict=True):
                    internal_ids.append(self.llm_engine.add_request(name, prompt, one, priority=level, **options))
                finished = self._run(len(names), show)
            except BaseException:
                self.llm_engine.abort_request(internal_ids)
                raise
        return [finished[name] for name in names]

    def _run(self, total: int, show: str | None) -> dict[str, Output]:
        """Step until every request has given its one output; by name."""
        finished: dict[str, Output] = {}
        tokens = 0
        with Progress(*BAR, console=Console(stderr=True), disable=show is None) as progress:
            bar = progress.add_task(show or "", total=total, speed="")
            while self.llm_engine.has_unfinished_requests():
                for output in self.llm_engine.step():
                    finished[output.request_id] = output
                    if isinstance(output, RequestOutput):
                        tokens += sum(len(answer.token_ids) for answer in output.outputs)
                    seconds = progress.tasks[bar].elapsed or 0.0
                    speed = f"{tokens / seconds:.0f} tokens/s" if tokens and seconds else ""
                    progress.update(bar, advance=1, speed=speed)
        return finished


def _as_list(prompts: Any) -> Sequence[Prompt]:
    """The prompts, also where a single one was given: a text, token ids, chat messages or a dictionary."""
    if not isinstance(prompts, list | tuple):
        return [prompts]
    first = prompts[0] if prompts else None
    is_one = isinstance(first, int) or (isinstance(first, Mapping) and "role" in first)
    return [prompts] if is_one else prompts


def _for_each(field: str, given: Params | Sequence[Params] | None, kind: type[Params], count: int) -> Sequence[Params]:
    if given is None:
        given = kind()
    if isinstance(given, kind):
        return [given] * count
    if not isinstance(given, list | tuple):
        raise refuse(field, given, f"{kind.__name__} or a list of them")
    if len(given) != count:
        raise refuse(field, f"{len(given)} values", f"one for each prompt, of which there are {count}")
    return given


def _final(params: object) -> SamplingParams:
    """A copy that asks for the last output alone."""
    if not isinstance(params, SamplingParams):
        raise refuse("sampling_params", params, "SamplingParams")
    final = params.clone()
    final.output_kind = RequestOutputKind.FINAL_ONLY
    return final
