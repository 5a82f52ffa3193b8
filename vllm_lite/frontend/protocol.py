"""What a server may ask of an engine, whichever class stands behind it.

Process: front end. Knows: names and types. Does not know: AsyncLLM.
Mirrors: vllm/engine/protocol.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vllm_lite.config import ModelConfig, VllmConfig
from vllm_lite.frontend.input_processor import InputProcessor
from vllm_lite.frontend.renderer import Prompt, Renderer
from vllm_lite.outputs import PoolingRequestOutput, RequestOutput
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.messages import EngineCoreRequest


@dataclass
class StreamingInput:
    """One part of a prompt that comes in parts, and what to sample its answer with; None: with what the call said.

    Each part is answered by itself. It follows all that came before, but for the last token of the answer before.
    """

    prompt: Prompt
    sampling_params: SamplingParams | None = None


AnyPrompt = Prompt | EngineCoreRequest | AsyncGenerator[StreamingInput, None]
PauseMode = Literal["abort", "wait", "keep"]
WakeUpTag = Literal["weights", "kv_cache", "scheduling"]


class EngineClient(ABC):
    """The engine as a server sees it. Ids in this interface are the caller's own."""

    vllm_config: VllmConfig
    model_config: ModelConfig
    renderer: Renderer
    input_processor: InputProcessor

    # ---- state -------------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """False once the task that sorts outputs has ended."""

    @property
    @abstractmethod
    def is_stopped(self) -> bool:
        """True where nothing can be served any more."""

    @property
    @abstractmethod
    def errored(self) -> bool:
        """True once the engine is dead or was shut down."""

    @property
    def should_keep_api_server_alive(self) -> bool:
        """Whether a server stays up although its engine is dead."""
        return False

    @property
    @abstractmethod
    def dead_error(self) -> BaseException:
        """What calls to a dead engine raise."""

    # ---- requests ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def generate(
        self,
        prompt: AnyPrompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        prompt_text: str | None = None,
        lora_request: object | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        session_id: str | None = None,
        kv_hints: dict[str, Any] | None = None,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: dict[str, Any] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The request's outputs, as they come. Nothing is sent before the first one is asked for."""

    @abstractmethod
    def encode(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        lora_request: object | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        reasoning_ended: bool | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """The request's one vector."""

    @abstractmethod
    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Give up every request in flight under these ids. Their `generate()` ends with reason "abort"."""

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:  # noqa: B027  (the default admits all)
        """Raise QueueOverflowError where `n` more requests would be too many now."""

    @abstractmethod
    async def notify_kv_transfer_request_rejected(
        self, request_id: str, kv_transfer_params: dict[str, Any], *, data_parallel_rank: int | None = None
    ) -> None:
        """Free KV blocks that wait for a request which will not come."""

    # ---- health and figures ------------------------------------------------------------------------------------------------

    @abstractmethod
    async def is_tracing_enabled(self) -> bool:
        """Whether trace headers are of use now."""

    @abstractmethod
    async def do_log_stats(self) -> None:
        """Log the figures of the last interval."""

    @abstractmethod
    async def check_health(self) -> None:
        """Raise EngineDeadError where the engine makes no progress."""

    @abstractmethod
    async def start_profile(
        self, profile_prefix: str | None = None, *, delay_iterations: int | None = None, max_iterations: int | None = None
    ) -> None:
        """Start the workers' profilers."""

    @abstractmethod
    async def stop_profile(self) -> None:
        """Stop them and write what they saw."""

    def get_kv_event_sources(self) -> dict[str, Any]:
        """Where events of the KV cache are published; nowhere."""
        return {}

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """What the model can be asked for: "generate", "embed"."""
        raise NotImplementedError("this client does not say which tasks it supports")

    async def get_status(self) -> dict[str, Any]:
        """The state of each engine core."""
        raise NotImplementedError("engine cores have no status beyond check_health() here")

    # ---- caches, memory, pauses --------------------------------------------------------------------------------------------

    @abstractmethod
    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget all cached prefixes; False where requests still hold blocks."""

    @abstractmethod
    async def reset_mm_cache(self) -> None:
        """Forget cached multimodal inputs."""

    @abstractmethod
    async def reset_encoder_cache(self) -> None:
        """Forget cached encoder outputs."""

    @abstractmethod
    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Free memory: level 1 keeps the weights in host memory, level 2 drops them."""

    @abstractmethod
    async def wake_up(self, tags: list[str] | None = None) -> bool:
        """Take memory back; True where nothing sleeps any more."""

    @abstractmethod
    async def is_sleeping(self) -> bool:
        """Whether any part sleeps."""

    @abstractmethod
    async def release_kv_cache_memory(self) -> None:
        """Free the KV cache of a paused engine."""

    @abstractmethod
    async def pause_generation(self, *, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
        """Let no new request start."""

    @abstractmethod
    async def resume_generation(self) -> None:
        """End a pause."""

    @abstractmethod
    async def is_paused(self) -> bool:
        """Whether a pause is on."""

    # ---- workers, adapters, weights, size ----------------------------------------------------------------------------------

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,  # noqa: ASYNC109  (the workers keep this time, not the loop)
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of every worker; their results in rank order."""
        raise NotImplementedError("this client reaches no workers")

    @abstractmethod
    async def add_lora(self, lora_request: object) -> bool:
        """Load an adapter."""

    async def compute_weight_checksums(self) -> dict[str, str]:
        """A checksum of each weight."""
        raise NotImplementedError("weights cannot be checked from here")

    async def init_weight_transfer_engine(self, init_request: object) -> None:
        """Prepare for weights sent by a trainer."""
        raise NotImplementedError("weights cannot be sent to a running engine")

    async def shutdown_weight_transfer_engine(self) -> None:
        """End the transfer of weights."""
        raise NotImplementedError("weights cannot be sent to a running engine")

    async def start_weight_update(self) -> None:
        """Begin to replace the weights."""
        raise NotImplementedError("weights cannot be sent to a running engine")

    async def start_draft_weight_update(self) -> None:
        """Begin to replace a draft model's weights."""
        raise NotImplementedError("there is no draft model: speculative decoding is not served")

    async def update_weights(self, request: object) -> None:
        """Take new weights."""
        raise NotImplementedError("weights cannot be sent to a running engine")

    async def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Let the new weights take effect."""
        raise NotImplementedError("weights cannot be sent to a running engine; update_weight_version() names those in use")

    async def update_weight_version(self, new_version: str) -> None:
        """Name the weights now in use."""
        raise NotImplementedError("this client's weights have no version")

    async def get_weight_version(self) -> str:
        """The name of the weights in use."""
        raise NotImplementedError("this client's weights have no version")

    async def scale_elastic_ep(self, new_data_parallel_size: int, drain_timeout: int = 300) -> None:
        """Change the number of engine cores."""
        raise NotImplementedError("the number of engine cores is fixed when the engine is built")

    async def handle_fault(self, fault_tolerance_request: object) -> bool:
        """Recover from a fault that was reported."""
        raise NotImplementedError("a faulty engine core ends; build a new engine")

    @abstractmethod
    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine's processes, in order for `timeout` seconds, then by force."""
