"""What a server may ask of an engine, whichever class stands behind it.

Process: front end. Knows: names and types. Does not know: AsyncLLM, whose methods mean what is said of them here.
Mirrors: vllm/engine/protocol.py
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Unpack

from vllm_lite.config import ModelConfig, VllmConfig
from vllm_lite.frontend.input_processor import InputProcessor, RequestOptions
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


class CallOptions(RequestOptions, total=False):
    """What may be said of a request, all of it by keyword: with the RequestOptions what concerns the front end alone."""

    prompt_text: str | None  # what outputs show as the prompt
    tokenization_kwargs: Mapping[str, Any] | None  # add_special_tokens, truncate_prompt_tokens
    trace_headers: Mapping[str, str] | None  # traceparent and its like, as they came over HTTP


def not_served(why: str) -> Callable[..., Awaitable[Any]]:
    """A method that takes any arguments and raises NotImplementedError with these words."""

    async def method(*_: object, **__: object) -> Any:
        raise NotImplementedError(why)

    return method


class EngineClient(ABC):
    """The engine as a server sees it. Ids in this interface are the caller's own.

    A dead engine raises EngineDeadError, an engine core that could not do what a call asked RuntimeError in its words.
    """

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
        """What calls to a dead engine raise; a new one each time, since each raising adds to an error's traceback."""

    # ---- requests ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def generate(
        self, prompt: AnyPrompt, sampling_params: SamplingParams, request_id: str, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[RequestOutput, None]:
        """The request's outputs, as `sampling_params.output_kind` wants them. Nothing is sent before the first one is asked
        for. Leaving early gives the request up.

        The last output has `finished` set and a `finish_reason` in each answer; after an `abort()` from elsewhere that is
        "abort". Raises VLLMValidationError or QueueOverflowError where the request is refused, EngineDeadError where the engine
        died, EngineGenerateError where anything else went wrong with this request.

        An async generator of `StreamingInput` is a prompt in parts, each answered when it comes. Outputs go on over all answers
        until the generator has ended; what it raises is raised here. An EngineCoreRequest counts as it is, and the other
        arguments do not.
        """

    @abstractmethod
    def encode(
        self, prompt: Prompt, pooling_params: PoolingParams, request_id: str, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """The request's one vector: `outputs.data`, float32 [hidden_size]. After an `abort()` from elsewhere it is empty.

        Raises what `generate()` raises; EngineGenerateError also where the engine could not make the vector.
        """

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
        """Let every stat logger report what came since the last call."""

    @abstractmethod
    async def check_health(self) -> None:
        """Raise EngineDeadError where the engine core is dead, or does not answer a ping in time (it may be stopped).

        A core that is busy with a long step answers: its input thread does.
        """

    @abstractmethod
    async def start_profile(
        self, profile_prefix: str | None = None, *, delay_iterations: int | None = None, max_iterations: int | None = None
    ) -> None:
        """Let every worker write down what it does, after `delay_iterations` steps and for `max_iterations`."""

    @abstractmethod
    async def stop_profile(self) -> None:
        """End the profiles; the workers' log says which files hold them."""

    def get_kv_event_sources(self) -> dict[str, Any]:
        """Where events of the KV cache are published; nowhere."""
        return {}

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """What the model can be asked for: "generate", "embed"."""
        raise NotImplementedError("this client does not say which tasks it supports")

    get_status = not_served("engine cores have no status beyond check_health() here")

    # ---- caches, memory, pauses --------------------------------------------------------------------------------------------

    @abstractmethod
    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget all cached prefixes; False where requests still hold blocks and may not be computed again."""

    @abstractmethod
    async def reset_mm_cache(self) -> None:
        """Forget cached multimodal inputs."""

    @abstractmethod
    async def reset_encoder_cache(self) -> None:
        """Forget cached encoder outputs."""

    @abstractmethod
    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Pause, and free memory: 1 keeps the weights in host memory, 2 drops them, both free the KV cache; 0 only pauses."""

    @abstractmethod
    async def wake_up(self, tags: list[str] | None = None) -> bool:
        """Take memory back: "weights", "kv_cache", or both; True, and the engine goes on, where nothing sleeps any more."""

    @abstractmethod
    async def is_sleeping(self) -> bool:
        """Whether the engine is paused or any part of it sleeps. RuntimeError where engine cores disagree."""

    @abstractmethod
    async def release_kv_cache_memory(self) -> None:
        """Free the KV cache of a paused engine without requests, until `wake_up`. RuntimeError in any other state."""

    @abstractmethod
    async def pause_generation(self, *, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
        """Let no new request start; comes back when no step runs any more. New requests are taken in and wait.

        Those in flight: "abort" gives them up, "wait" lets those that have begun end first, "keep" freezes them until
        `resume_generation`. `clear_cache` forgets cached prefixes, so that frozen requests are computed again.
        """

    @abstractmethod
    async def resume_generation(self) -> None:
        """End a pause; what waits goes on. RuntimeError while the engine sleeps."""

    @abstractmethod
    async def is_paused(self) -> bool:
        """Whether a pause is on. RuntimeError where engine cores disagree."""

    # ---- workers, adapters, weights, size ----------------------------------------------------------------------------------

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,  # noqa: ASYNC109  (the workers keep this time, not the loop)
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Call `method` of every worker; their results in rank order."""
        raise NotImplementedError("this client reaches no workers")

    @abstractmethod
    async def add_lora(self, lora_request: object) -> bool:
        """Load an adapter."""

    async def update_weight_version(self, new_version: str) -> None:
        """Name the weights in use from now on: outputs then say which tokens were made with which."""
        raise NotImplementedError("this client's weights have no version")

    async def get_weight_version(self) -> str:
        """The name of the weights in use, "default" at first. RuntimeError where engine cores disagree."""
        raise NotImplementedError("this client's weights have no version")

    compute_weight_checksums = not_served("weights cannot be checked from here")
    init_weight_transfer_engine = not_served("weights cannot be sent to a running engine")
    shutdown_weight_transfer_engine = not_served("weights cannot be sent to a running engine")
    start_weight_update = not_served("weights cannot be sent to a running engine")
    start_draft_weight_update = not_served("there is no draft model: speculative decoding is not served")
    update_weights = not_served("weights cannot be sent to a running engine")
    finish_weight_update = not_served("weights cannot be sent to a running engine; update_weight_version() names those in use")
    scale_elastic_ep = not_served("the number of engine cores is fixed when the engine is built")
    handle_fault = not_served("a faulty engine core ends; build a new engine")

    @abstractmethod
    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine's processes, in order for `timeout` seconds (5 where None), then by force. Blocks until they are gone.

        From another thread than the loop's, and without `timeout`, requests in flight first get --shutdown-timeout to end.
        Whoever still waits then gets EngineDeadError. May be called more than once, from any thread.
        """
