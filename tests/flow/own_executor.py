"""An executor that no name of ours stands for."""

from vllm_lite.engine_core.executor.toy import ToyExecutor


class OwnExecutor(ToyExecutor):
    """The toy executor under another name."""
