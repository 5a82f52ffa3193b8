from __future__ import annotations

import logging
import threading

import pytest

from tests.tracing import make
from vllm_lite.tracing.exporter import sender as module
from vllm_lite.tracing.exporter.sender import LastError, Sender
from vllm_lite.tracing.spans import Kind, Span


def spans(count: int) -> list[Span]:
    return [Span(make.core(), "a" * 32, f"{n:016x}", None, "x", Kind.INTERNAL, 0, 1) for n in range(count)]


class Collector:
    """An exporter in memory. `refuse` first tries fail; `gate`, where set, holds every try back."""

    def __init__(self, refuse: int = 0) -> None:
        self.refuse = refuse
        self.got: list[int] = []
        self.tries = 0
        self.connected = 0
        self.gate = threading.Event()
        self.gate.set()
        self.tried = threading.Event()

    def connect(self) -> module.Export:
        self.connected += 1
        return self.export

    def export(self, batch: list[Span]) -> bool:
        self.tries += 1
        self.tried.set()
        assert self.gate.wait(30)
        if self.refuse > 0:
            self.refuse -= 1
            return False
        self.got.append(len(batch))
        return True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", (0.0,))


def started(collector: Collector, batch: int = 10, queue: int = 100) -> Sender:
    sender = Sender(collector.connect, batch, queue)
    sender.start()
    return sender


def test_batches_of_the_size_that_was_asked_for() -> None:
    collector = Collector()
    sender = started(collector)
    sender.put(spans(25), poll=1)
    sender.put(spans(3), poll=2)
    assert sender.close(30)
    assert collector.got == [10, 10, 5, 3]
    assert (sender.sent, sender.lost, sender.waiting, collector.connected) == (28, 0, 0, 1)


def test_no_connection_before_there_is_something_to_send() -> None:
    collector = Collector()
    sender = started(collector)
    assert sender.close(30)
    assert collector.connected == 0


def test_a_collector_that_comes_back_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    collector = Collector(refuse=7)
    sender = started(collector)
    sender.put(spans(15), poll=1)
    assert sender.close(30)
    assert (collector.got, collector.tries, sender.lost) == ([10, 5], 9, 0)
    assert capsys.readouterr().err == "vllm-lite exporter: the collector takes no spans; nothing is lost, trying on\n"


def test_a_batch_that_fails_for_too_long_is_let_go_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GIVE_UP_S", -1.0)
    collector = Collector(refuse=1)
    sender = started(collector)
    sender.put(spans(15), poll=1)
    assert sender.close(30)
    assert (collector.got, sender.sent, sender.lost) == ([5], 5, 10)


def test_full_and_how_far_it_has_come() -> None:
    collector = Collector()
    collector.gate.clear()
    sender = started(collector, batch=10, queue=20)
    assert sender.done_until == float("inf")
    sender.put(spans(10), poll=4)
    sender.put(spans(5), poll=5)
    assert not sender.full
    sender.put(spans(5), poll=6)
    assert sender.full
    assert collector.tried.wait(30)
    assert sender.done_until == 4
    assert not sender.close(0.01)
    collector.gate.set()
    assert sender.close(30)
    assert sender.done_until == float("inf")


def test_a_fault_of_its_own_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> module.Export:
        raise OSError("no such certificate")

    sender = Sender(broken, 10, 100)
    sender.start()
    sender.put(spans(1), poll=1)
    sender._thread.join(30)
    assert not sender.close(0.0)
    assert capsys.readouterr().err == "vllm-lite exporter: cannot send: OSError('no such certificate')\n"


def test_the_last_error_is_kept() -> None:
    handler = LastError()
    logger = logging.Logger("quiet")
    logger.addHandler(handler)
    logger.warning("Transient error %s", "UNAVAILABLE")
    assert handler.text == "Transient error UNAVAILABLE"
