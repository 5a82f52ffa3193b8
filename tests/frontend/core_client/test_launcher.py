"""A start that fails says why at once, in the words of whoever knows, and leaves no process."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.frontend.core_client.conftest import children
from tests.frontend.helpers import toy_config
from vllm_lite import VllmConfig, exceptions
from vllm_lite.exceptions import EngineStartError, UnsupportedModelError, VLLMValidationError
from vllm_lite.frontend.core_client import AsyncMPClient
from vllm_lite.frontend.core_client.launcher import LOGGING_LEVEL, READY_TIMEOUT
from vllm_lite.wire.messages import PROTOCOL_VERSION


@pytest.fixture
def config(tiny_model_path: Path) -> VllmConfig:
    return toy_config(tiny_model_path)


def sockets(tmp: Path) -> list[Path]:
    return list(tmp.glob("vllm-lite-*"))


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Socket folders of these tests can be counted."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.parametrize(
    ("mode", "kind", "words"),
    [
        ("exits", EngineStartError, r"engine core 0 \(pid \d+\) ended with exit code 3\. Its last words above say why"),
        ("dies in silence", EngineStartError, r"engine core 0 \(pid \d+\) was ended by SIGKILL"),
        ("fails with VLLMValidationError", VLLMValidationError, "^the reason why$"),
        ("fails with UnsupportedModelError", UnsupportedModelError, "^the reason why$"),
        ("fails with RuntimeError", EngineStartError, "^RuntimeError: the reason why$"),
        ("fails with __doc__", EngineStartError, "^__doc__: the reason why$"),  # a name in that module, no exception
        (
            "speaks another protocol",
            EngineStartError,
            f"speaks version {PROTOCOL_VERSION + 1} of the protocol and this front end version {PROTOCOL_VERSION}",
        ),
        ("talks nonsense", EngineStartError, "a message that is not HELLO"),
        ("is ready in another protocol", EngineStartError, f"speaks version {PROTOCOL_VERSION + 1}"),
    ],
)
def test_a_start_that_fails(
    fake_core: Callable[[str], None], config: VllmConfig, tmp_path: Path, mode: str, kind: type[Exception], words: str
) -> None:
    assert hasattr(exceptions, "__doc__")
    fake_core(mode)
    start = time.monotonic()
    with pytest.raises(kind, match=words):
        AsyncMPClient(config)
    assert time.monotonic() - start < 20
    assert children() == []
    assert sockets(tmp_path) == []


def test_a_start_that_takes_too_long(
    fake_core: Callable[[str], None], config: VllmConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_core("says nothing")
    monkeypatch.setenv(READY_TIMEOUT, "0.3")
    with pytest.raises(EngineStartError, match=r"engine core \[0\] was not ready within 0\.3 s"):
        AsyncMPClient(config)
    assert children() == []
    assert sockets(tmp_path) == []


@pytest.mark.parametrize(("variable", "accepted"), [(READY_TIMEOUT, "a number of seconds"), (LOGGING_LEVEL, "one of DEBUG")])
def test_a_variable_that_is_none(config: VllmConfig, monkeypatch: pytest.MonkeyPatch, variable: str, accepted: str) -> None:
    monkeypatch.setenv(variable, "soon")
    with pytest.raises(VLLMValidationError, match=f"{variable} must be {accepted}"):
        AsyncMPClient(config)


class InterruptedAtBirth(subprocess.Popen[bytes]):
    """Ctrl-C the moment that there is an engine core, before anybody could note its pid."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("moment", ["at its birth", "while it is awaited"])
@pytest.mark.parametrize("inside", ["no loop", "asyncio.run", "a loop's own handler"])
def test_ctrl_c_while_starting_leaves_nothing(
    fake_core: Callable[[str], None],
    config: VllmConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    inside: str,
    moment: str,
) -> None:
    fake_core("says nothing" if moment == "at its birth" else "interrupts its parent")
    if moment == "at its birth":
        monkeypatch.setattr("subprocess.Popen", InterruptedAtBirth)

    async def start() -> None:
        if inside == "a loop's own handler":
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
        before = signal.getsignal(signal.SIGINT)
        try:
            AsyncMPClient(config)
        finally:
            assert signal.getsignal(signal.SIGINT) is before

    with pytest.raises(KeyboardInterrupt):
        AsyncMPClient(config) if inside == "no loop" else asyncio.run(start())
    assert children() == []
    assert sockets(tmp_path) == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ready_brings_what_only_the_engine_core_knows(
    fake_core: Callable[[str], None], config: VllmConfig, tmp_path: Path
) -> None:
    fake_core("is well")
    client = AsyncMPClient(config)
    (ready,) = client.ready
    assert (ready.engine_index, ready.pid, ready.max_model_len, ready.num_gpu_blocks) == (0, children()[0].pid, 64, 10)
    client.shutdown()
    assert children() == []
    assert sockets(tmp_path) == []
