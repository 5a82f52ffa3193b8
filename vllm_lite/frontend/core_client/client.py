"""What the front end asks of an engine core client, whichever kind it is.

Process: front end. Knows: the calls. Does not know: how many engine cores there are, or how they are reached.
Mirrors: vllm/v1/engine/core_client.py (EngineCoreClient)
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from vllm_lite.exceptions import EngineDeadError
from vllm_lite.wire.messages import EngineCoreOutputs, EngineCoreReadyResponse, EngineCoreRequest


class Bag(NamedTuple):
    """A message of outputs with its arrival: monotonic ns when it was received and when it was decoded, and its bytes."""

    outputs: EngineCoreOutputs
    t_received: int
    t_decoded: int
    body_size: int


class Posted(NamedTuple):
    """Which engine core a request was sent to, and how many bytes that took; among several also why that one ("asked",
    "least_busy") and how busy each was."""

    engine_index: int
    body_size: int
    choice: str = ""
    scores: Sequence[float] = ()


NoteCall = Callable[[str, int, int], AbstractContextManager[str | None]]  # method, engine core, call; the traceparent to send


class EngineCoreClient(ABC):
    """All calls but `abort_requests_async` and `shutdown` raise EngineDeadError once an engine core is dead.

    `ready` is what each engine core said of itself when it was ready.
    """

    ready: list[EngineCoreReadyResponse]

    def note_calls(self, note: NoteCall) -> None:  # noqa: B027  (a default for those that trace none)
        """From now on wrap every utility call in `note`."""

    @property
    @abstractmethod
    def dead_error(self) -> EngineDeadError | None:
        """Why no engine can be reached any more; None while all is well."""

    @abstractmethod
    async def get_bag_async(self) -> Bag:
        """Wait for the next bag."""

    @abstractmethod
    async def add_request_async(self, request: EngineCoreRequest) -> Posted:
        """Send a request. TypeError where it holds what cannot be encoded."""

    @abstractmethod
    async def abort_requests_async(
        self, request_ids: Sequence[str], reason: str = "api", trace_headers: Mapping[str, str] | None = None
    ) -> None:
        """Tell the engine core to give requests up, by internal id; ids that it does not know are harmless."""

    @abstractmethod
    async def call_utility_all_async(self, method: str, *args: Any) -> list[Any]:
        """Call a method of every engine core at once and wait; their results by index. RuntimeError with the core's words where
        one failed."""

    async def call_utility_async(self, method: str, *args: Any) -> Any:
        """The same; the first one's result."""
        return (await self.call_utility_all_async(method, *args))[0]

    async def call_utility_consensus_async(self, method: str, *args: Any) -> Any:
        """The same for a question to which all must have one answer; RuntimeError where they have not."""
        results = await self.call_utility_all_async(method, *args)
        if any(result != results[0] for result in results):
            raise RuntimeError(f"the engine cores disagree about {method}: {results}")
        return results[0]

    @abstractmethod
    async def ping_async(self, seconds: float) -> None:
        """Ask for a sign of life; EngineDeadError where none comes within so many seconds."""

    @abstractmethod
    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine cores. May be called more than once, from any thread."""
