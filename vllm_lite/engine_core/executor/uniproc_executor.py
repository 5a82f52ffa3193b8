"""The worker as a place in the engine core's own process.

Process: engine core (and the front end's, for an engine in process). Knows: the worker's methods. Does not know: torch; the
worker is imported when one is built.
Mirrors: vllm/v1/executor/uniproc_executor.py
"""

from concurrent.futures import Future
from typing import Any

from vllm_lite.config import VllmConfig
from vllm_lite.engine_core.executor.abstract import Executor


class UniProcExecutor(Executor):
    """Calls one worker directly; a Future of it is always done already.

    Steps are not planned ahead here, on CUDA neither: `sample_tokens` waits for the device within the call. "mp" can do that.
    """

    def __init__(self, vllm_config: VllmConfig) -> None:
        super().__init__(vllm_config)
        self.worker = self._make_worker()

    def _make_worker(self) -> Any:
        from vllm_lite.worker.worker import Worker

        return Worker(self.vllm_config, rank=0)

    def submit(self, method: str, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call one of the worker's methods before returning."""
        future: Future[Any] = Future()
        try:
            future.set_result(getattr(self.worker, method)(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    def collective_rpc(
        self, method: str, timeout: float | None = None, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> list[Any]:
        """Call the worker's method; it runs inline, so `timeout` has nothing to interrupt."""
        return [self.submit(method, *args, **(kwargs or {})).result()]

    def shutdown(self) -> None:
        """Let the worker free what it holds."""
        self.worker.shutdown()
