"""Pausing, sleeping and waking: what an engine core is asked for besides answering requests.

Process: engine core, main thread. Knows: the scheduler's pause state, the executor's memory, what is to be done once no step is
left to come. Does not know: who asked, or how the answer travels; an answer that must wait for the last step is a Future.
Mirrors: vllm/v1/engine/core.py (EngineCore: pause_scheduler, sleep, wake_up and their like)
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from vllm_lite.config import VllmConfig
from vllm_lite.config.checks import check_bool, check_choice, check_int, check_text
from vllm_lite.engine_core.core.stepper import Stepper
from vllm_lite.engine_core.executor.abstract import Executor, FailureCallback
from vllm_lite.engine_core.request import Request
from vllm_lite.engine_core.scheduler import PauseState
from vllm_lite.wire.messages import DEFAULT_WEIGHT_VERSION

PAUSE_MODES = ("abort", "wait", "keep")
SLEEP_TAGS = ("weights", "kv_cache")
SCHEDULING_TAG = "scheduling"  # wakes the scheduler, with the last of the others


class EngineCore(Stepper):
    """Steps, and all else that an engine core can be told to do. While paused, requests are still taken in; they wait."""

    def __init__(
        self, vllm_config: VllmConfig, executor_class: type[Executor], executor_fail_callback: FailureCallback | None = None
    ) -> None:
        super().__init__(vllm_config, executor_class, executor_fail_callback)
        self.sleeping_tags: set[str] = set()  # what the workers have given up
        self._idle_actions: deque[tuple[Future[None], Callable[[], None]]] = deque()

    def flush_step(self) -> None:
        """Run a step that has no request, only news for the workers; in process nobody waits for its bag."""
        self.step()

    def tell_aborted(self, requests: list[Request]) -> None:
        """Their callers hear that these requests were aborted; in process whoever paused knows."""

    # ---- pausing -------------------------------------------------------------------------------------------------------------

    def pause_scheduler(self, mode: str = "abort", clear_cache: bool = True) -> Future[None] | None:
        """Stop answering: give all requests up ("abort"), let those that have begun end ("wait"), or freeze them ("keep").

        None where that is so at once, else a Future that is done when the last step has ended; it holds RuntimeError where
        `resume_scheduler` or a shutdown came before. `clear_cache` then forgets the cached prefixes; frozen requests are
        computed again when they go on. In an engine that sleeps they stay frozen, whichever the mode, until it wakes.
        """
        check_choice("mode", mode, PAUSE_MODES)
        check_bool("clear_cache", clear_cache)
        self._pause(mode)
        return self._when_idle(partial(self._clear_caches, clear_cache))

    def resume_scheduler(self) -> None:
        """Go on with everything that waits. RuntimeError where the workers sleep."""
        if self.sleeping_tags:
            raise RuntimeError("the engine sleeps: wake_up() also resumes")
        self.scheduler.pause_state = PauseState.UNPAUSED
        self.fail_idle_actions("the engine was resumed before it had come to rest")

    def is_scheduler_paused(self) -> bool:
        """True from `pause_scheduler` or `sleep` until the engine goes on."""
        return self.scheduler.pause_state != PauseState.UNPAUSED

    def _pause(self, mode: str) -> None:
        if mode == "abort":
            self.tell_aborted(self.abort_requests(None, "api"))
        frozen = mode == "keep" or self.sleeping_tags  # who sleeps has no memory to let anybody end with
        self.scheduler.pause_state = PauseState.PAUSED_ALL if frozen else PauseState.PAUSED_NEW

    def _clear_caches(self, clear_cache: bool) -> None:
        if clear_cache:
            self.reset_prefix_cache(reset_running_requests=True)

    # ---- sleeping ------------------------------------------------------------------------------------------------------------

    def sleep(self, level: int = 1, mode: str = "abort") -> Future[None] | None:
        """Pause; at level 1 the KV cache is freed and the weights go to the host, at level 2 they are dropped.

        None where that is done, else a Future as of `pause_scheduler`.
        """
        check_int("level", level, 0, 2)
        check_choice("mode", mode, PAUSE_MODES)
        self._pause(mode)
        return self._when_idle(partial(self._fall_asleep, level))

    def wake_up(self, tags: list[str] | None = None) -> bool:
        """Take back memory: "weights", "kv_cache", or (None) both; with nothing left asleep, also go on. True where that is so.

        "scheduling" alone takes nothing back.
        """
        for tag in tags or ():
            check_choice("tags", tag, (*SLEEP_TAGS, SCHEDULING_TAG))
        woken = [tag for tag in SLEEP_TAGS if tag in self.sleeping_tags and (tags is None or tag in tags)]
        if woken:
            self.model_executor.collective_rpc("wake_up", args=(woken,))
            self.sleeping_tags.difference_update(woken)
        if self.sleeping_tags:
            return False
        self.resume_scheduler()
        return True

    def is_sleeping(self) -> bool:
        """True while paused, or while memory was given up."""
        return self.is_scheduler_paused() or bool(self.sleeping_tags)

    def release_kv_cache_memory(self) -> None:
        """Free the KV cache of a paused engine without requests, until `wake_up`. RuntimeError in any other state."""
        if not self.is_scheduler_paused() or self.has_work() or self.scheduler.requests:
            raise RuntimeError("the KV cache can be released once the engine is paused and holds no request")
        self.reset_prefix_cache()
        self.model_executor.collective_rpc("release_kv_cache_memory")
        self.sleeping_tags.add("kv_cache")

    def _fall_asleep(self, level: int) -> None:
        if level:
            self.reset_prefix_cache(reset_running_requests=True)
            self.model_executor.collective_rpc("sleep", args=(level,))
            self.sleeping_tags = set(SLEEP_TAGS)

    # ---- caches, profiles, weights -------------------------------------------------------------------------------------------

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached blocks; False while running requests hold some, unless they may be computed again."""
        return self.scheduler.reset_prefix_cache(reset_running_requests)

    def collective_rpc(
        self, method: str, timeout: float | None = None, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> list[Any]:
        """Call a method of every worker; one result for each."""
        return self.model_executor.collective_rpc(method, timeout, tuple(args), kwargs)

    def profile(self, *args: Any) -> list[str | None]:
        """Let every worker begin a profile, or end it and say which file holds it; the arguments are `Worker.profile`'s."""
        return self.model_executor.collective_rpc("profile", args=args)

    def set_weight_version(self, weight_version: str) -> None:
        """Name the weights in use; bags carry the name from now on."""
        self.weight_version = check_text("weight_version", weight_version)

    def get_weight_version(self) -> str:
        """The name of the weights in use."""
        return self.weight_version or DEFAULT_WEIGHT_VERSION

    # ---- coming to rest ------------------------------------------------------------------------------------------------------

    def run_idle_actions(self) -> None:
        """Do what waited for the last step, if that was it. Who runs steps calls this once their bags are on their way."""
        while self._idle_actions and not self.has_work():
            future, action = self._idle_actions.popleft()
            try:
                action()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(None)

    def fail_idle_actions(self, reason: str) -> None:
        """What waits will not be done."""
        while self._idle_actions:
            self._idle_actions.popleft()[0].set_exception(RuntimeError(reason))

    def _when_idle(self, action: Callable[[], Any]) -> Future[None] | None:
        while self.has_work() and not self.scheduler.requests:  # all that is left is news for the workers
            self.flush_step()
        if not self.has_work():
            action()
            return None
        future: Future[None] = Future()
        self._idle_actions.append((future, action))
        return future
