"""The errors a caller can meet, and nothing else.

Process: all. Knows: names and texts. Does not know: who raises them.
Mirrors: vllm/v1/engine/exceptions.py and vllm/exceptions.py
"""


class VLLMClientError(ValueError):
    """The caller's request is at fault; the engine is well and the answer is a 400."""


class VLLMValidationError(VLLMClientError):
    """A value was refused where it entered.

    The text names the field, what it held and what would be accepted, so that the caller can mend it without reading code.
    """

    def __init__(self, message: str, *, parameter: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.value = value


class QueueOverflowError(RuntimeError):
    """Too many requests or tokens already wait; try again later (HTTP 503)."""


class MaxQueuedTokensError(QueueOverflowError):
    """The same, because of the waiting prompt tokens and not of the requests."""


class UnsupportedModelError(VLLMClientError):
    """The model cannot be served; the text says which property of it stands in the way."""


class EngineGenerateError(RuntimeError):
    """One request failed inside the engine. Recoverable: the engine and its other requests go on."""


class EngineDeadError(RuntimeError):
    """The engine core died. Unrecoverable: every request in flight got this error and every later call gets it too.

    `engine_index`: which engine core, where the error came from its death; None after an orderly shutdown.
    """

    def __init__(self, message: str | None = None, engine_index: int | None = None) -> None:
        super().__init__(message or "the engine core is dead; its last words in the log above say why. Build a new engine.")
        self.engine_index = engine_index


class EngineStartError(RuntimeError):
    """A child process ended, or did not answer, while the engine was starting."""
