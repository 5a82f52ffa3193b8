"""An executor that no name of ours stands for, and a worker with a method of its own."""

from vllm_lite.engine_core.executor.toy import ToyExecutor, ToyWorker


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class OwnWorker(ToyWorker):
    """The toy, with a call that fails and cannot say why."""

    def fail_speechless(self) -> None:
        raise SpeechlessError


class OwnExecutor(ToyExecutor):
    """The toy executor under another name."""

    def _make_worker(self) -> OwnWorker:
        return OwnWorker(self.vllm_config)
