"""All that a server asks of an engine besides generating: health, figures, pauses, memory, caches, workers.

Process: front end. Knows: which method of the engine cores answers a call. Does not know: requests.
What each call means is said once, in EngineClient. What is not served raises NotImplementedError with a sentence.
Mirrors: vllm/v1/engine/async_llm.py (its control methods)
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from vllm_lite.config.checks import check_bool, check_choice, check_int, check_mapping, check_number, check_text, refuse
from vllm_lite.exceptions import EngineDeadError
from vllm_lite.frontend.core_client import EngineCoreClient
from vllm_lite.frontend.output_processor import OutputProcessor
from vllm_lite.frontend.parts import EngineParts
from vllm_lite.frontend.protocol import EngineClient, PauseMode, WakeUpTag, not_served
from vllm_lite.frontend.stamps import Stamps
from vllm_lite.frontend.tokenizer import Tokenizer
from vllm_lite.metrics.loggers import StatLoggerManager

HEALTH_SECONDS = 5.0


class EngineControl(EngineClient):
    """The half of AsyncLLM that does not carry requests."""

    engine_core: EngineCoreClient
    output_processor: OutputProcessor
    logger_manager: StatLoggerManager | None  # None with log_stats off
    _parts: EngineParts
    _stamps: Stamps

    # ---- state -------------------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        task = self._parts.handler_task
        return task is None or not task.done()

    @property
    def is_stopped(self) -> bool:
        return self.errored

    @property
    def errored(self) -> bool:
        return self.engine_core.dead_error is not None or not self.is_running

    @property
    def dead_error(self) -> BaseException:
        known = self.engine_core.dead_error
        if known is None and not self.is_running:
            return EngineDeadError("the task that sorts the engine's outputs has ended: it failed, or its event loop is closed")
        return EngineDeadError(None if known is None else str(known))

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, None with skip_tokenizer_init."""
        return self.renderer.tokenizer

    def get_tokenizer(self) -> Tokenizer:
        """The tokenizer; VLLMValidationError with skip_tokenizer_init."""
        return self.renderer.get_tokenizer()

    # ---- health and figures ------------------------------------------------------------------------------------------------

    async def check_health(self, seconds: float = HEALTH_SECONDS) -> None:
        check_number("seconds", seconds, 0)
        if self.errored:
            raise self.dead_error
        await self.engine_core.ping_async(seconds)

    async def is_tracing_enabled(self) -> bool:
        return self._stamps.level > 0

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return tuple(self.engine_core.ready[0].supported_tasks)

    def get_num_unfinished_requests(self) -> int:
        """Requests in the engine, each of n > 1 counted."""
        return self.output_processor.get_num_unfinished_requests()

    def get_num_queued_tokens(self) -> int:
        """Prompt tokens of requests that have not made their first token yet."""
        return self.output_processor.get_num_queued_tokens()

    async def do_log_stats(self) -> None:
        if self.logger_manager is not None:
            self.logger_manager.log()

    async def start_profile(
        self, profile_prefix: str | None = None, *, delay_iterations: int | None = None, max_iterations: int | None = None
    ) -> None:
        check_text("profile_prefix", profile_prefix, optional=True)
        delay, most = delay_iterations or 0, max_iterations or 0
        check_int("delay_iterations", delay, 0)
        check_int("max_iterations", most, 0)
        await self.engine_core.call_utility_all_async("profile", True, profile_prefix, delay, most)

    async def stop_profile(self) -> None:
        await self.engine_core.call_utility_all_async("profile", False)

    async def wait_for_requests_to_drain(self, drain_timeout: float = 300) -> None:
        """Come back when no request is in flight; TimeoutError after `drain_timeout` seconds. New ones are still taken in."""
        check_number("drain_timeout", drain_timeout, 0)
        async with asyncio.timeout(drain_timeout):
            while self.output_processor.has_unfinished_requests():  # noqa: ASYNC110  (asked once, at the end)
                await asyncio.sleep(0.01)

    # ---- caches, workers, weights ------------------------------------------------------------------------------------------

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        if reset_connector:
            raise NotImplementedError("there is no KV connector whose cache could be reset")
        check_bool("reset_running_requests", reset_running_requests)
        return all(await self.engine_core.call_utility_all_async("reset_prefix_cache", reset_running_requests))

    async def reset_mm_cache(self) -> None:
        """Nothing to do: multimodal prompts are not served, so none is cached."""

    async def reset_encoder_cache(self) -> None:
        """Nothing to do: there is no encoder."""

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,  # noqa: ASYNC109  (the workers keep this time, not the loop)
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        call = rpc_arguments(method, timeout, args, kwargs)
        answers = await self.engine_core.call_utility_all_async("collective_rpc", *call)
        return [result for answer in answers for result in answer]

    async def update_weight_version(self, new_version: str) -> None:
        if not check_text("new_version", new_version):
            raise refuse("new_version", new_version, "a name, so not empty")
        await self.engine_core.call_utility_all_async("set_weight_version", new_version)

    async def get_weight_version(self) -> str:
        return str(await self.engine_core.call_utility_consensus_async("get_weight_version"))

    # ---- pauses and memory -------------------------------------------------------------------------------------------------

    async def pause_generation(self, *, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
        check_choice("mode", mode, get_args(PauseMode))
        check_bool("clear_cache", clear_cache)
        await self.engine_core.call_utility_all_async("pause_scheduler", mode, clear_cache)

    async def resume_generation(self) -> None:
        await self.engine_core.call_utility_all_async("resume_scheduler")

    async def is_paused(self) -> bool:
        return bool(await self.engine_core.call_utility_consensus_async("is_scheduler_paused"))

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        await self.engine_core.call_utility_all_async("sleep", *sleep_arguments(level, mode))
        if self.logger_manager is not None:
            self.logger_manager.record_sleep_state(1, level)

    async def wake_up(self, tags: list[str] | None = None) -> bool:
        awake = all(await self.engine_core.call_utility_all_async("wake_up", checked_tags(tags)))
        if awake and self.logger_manager is not None:
            self.logger_manager.record_sleep_state(0, 0)
        return awake

    async def is_sleeping(self) -> bool:
        return bool(await self.engine_core.call_utility_consensus_async("is_sleeping"))

    async def release_kv_cache_memory(self) -> None:
        await self.engine_core.call_utility_all_async("release_kv_cache_memory")

    # ---- not served --------------------------------------------------------------------------------------------------------

    async def notify_kv_transfer_request_rejected(
        self, request_id: str, kv_transfer_params: dict[str, Any], *, data_parallel_rank: int | None = None
    ) -> None:
        raise NotImplementedError("KV caches are not transferred between engines")

    async def add_lora(self, lora_request: object) -> bool:
        raise NotImplementedError("LoRA adapters are not served")

    remove_lora = list_loras = pin_lora = not_served("LoRA adapters are not served")


def sleep_arguments(level: int, mode: PauseMode) -> tuple[int, PauseMode]:
    """Those of `sleep()`, checked."""
    check_int("level", level, 0, 2)
    check_choice("mode", mode, get_args(PauseMode))
    return level, mode


def checked_tags(tags: list[str] | None) -> list[str] | None:
    """Those of `wake_up()`."""
    if not isinstance(tags, list | tuple | None):
        raise refuse("tags", tags, "None or a list of tags")
    for tag in tags or ():
        check_choice("tags", tag, get_args(WakeUpTag))
    return tags


def rpc_arguments(method: str, timeout: float | None, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """Those of `collective_rpc()`, checked."""
    check_text("method", method, "the name of a worker's method")
    if timeout is not None:
        check_number("timeout", timeout, 0)
    if not isinstance(args, list | tuple):
        raise refuse("args", args, "a tuple or list, one item for each argument")
    kwargs = {} if kwargs is None else kwargs
    check_mapping("kwargs", kwargs)
    return method, timeout, args, kwargs
