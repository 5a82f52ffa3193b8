"""The shared-memory queue: whole messages, in order, to every reader, whatever their size."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading

import pytest

from vllm_lite.wire.shm_broadcast import MessageQueue, QueueCancelledError


def joined(queue: MessageQueue, rank: int) -> MessageQueue:
    """The same queue as a reader that inherited it has it."""
    sizes = queue.handle().split(",")[:2]
    return MessageQueue.open(",".join([*sizes, *(str(os.dup(fd)) for fd in queue.fds)]), rank)


def messages(seed: int, count: int) -> list[list[bytes]]:
    rng = random.Random(seed)
    return [[rng.randbytes(rng.choice([0, 1, 7, 300, 2000])) for _ in range(rng.randint(0, 3))] for _ in range(count)]


@pytest.mark.parametrize("num_readers", [1, 3])
def test_every_reader_gets_every_message_in_order_through_a_small_ring(num_readers: int) -> None:
    queue = MessageQueue.create(num_readers, capacity=512)  # smaller than most messages
    sent = messages(1, 200)
    received: list[list[list[bytes]]] = [[] for _ in range(num_readers)]
    readers = [joined(queue, rank) for rank in range(num_readers)]

    def read(rank: int) -> None:
        for _ in sent:
            received[rank].append(readers[rank].dequeue(30))

    threads = [threading.Thread(target=read, args=(rank,)) for rank in range(num_readers)]
    for thread in threads:
        thread.start()
    for frames in sent:
        queue.enqueue(frames)
    for thread in threads:
        thread.join()
    assert received == [sent] * num_readers
    for reader in readers:
        reader.close()
    queue.close()


def test_a_timeout_leaves_the_queue_usable() -> None:
    queue = MessageQueue.create()
    reader = joined(queue, 0)
    with pytest.raises(TimeoutError):
        reader.dequeue(0.01)
    queue.enqueue([b"a", bytearray(b"b"), memoryview(b"c")])
    assert reader.dequeue(0) == [b"a", b"b", b"c"]
    reader.close()
    queue.close()


def test_cancel_wakes_a_reader_but_not_before_it_has_what_was_sent() -> None:
    queue = MessageQueue.create()
    reader = joined(queue, 0)
    queue.enqueue([b"last"])
    reader.cancel()
    assert reader.dequeue() == [b"last"]
    with pytest.raises(QueueCancelledError):
        reader.dequeue()
    reader.close()
    queue.close()


def test_cancel_wakes_a_waiting_reader() -> None:
    queue = MessageQueue.create()
    reader = joined(queue, 0)
    ended = threading.Event()

    def read() -> None:
        with pytest.raises(QueueCancelledError):
            reader.dequeue()
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    reader.cancel()
    assert ended.wait(10)
    thread.join()
    reader.close()
    queue.close()


def test_cancel_wakes_a_writer_that_waits_for_room() -> None:
    queue = MessageQueue.create(capacity=64)
    queue.cancel()
    with pytest.raises(QueueCancelledError):
        queue.enqueue([bytes(100)])
    queue.close()


ECHO = """
import sys
from vllm_lite.wire.shm_broadcast import MessageQueue
calls, replies = MessageQueue.open(sys.argv[1], 0), MessageQueue.open(sys.argv[2], None)
while frames := calls.dequeue():
    replies.enqueue([f[::-1] for f in frames])
"""


def test_two_queues_join_two_processes() -> None:
    calls, replies = MessageQueue.create(capacity=4096), MessageQueue.create(rank=0, capacity=4096)
    command = [sys.executable, "-c", ECHO, calls.handle(), replies.handle()]
    with subprocess.Popen(command, pass_fds=[*calls.fds, *replies.fds]) as child:
        for frames in [m for m in messages(2, 60) if m]:
            calls.enqueue(frames)
            assert replies.dequeue(30) == [f[::-1] for f in frames]
        calls.enqueue([])
        assert child.wait(30) == 0
    for queue in (calls, replies):
        queue.close()


def test_nothing_is_left_in_the_file_system_or_among_our_descriptors() -> None:
    before = len(os.listdir("/proc/self/fd")), os.listdir("/dev/shm")
    queue = MessageQueue.create(2)
    reader = joined(queue, 1)
    queue.enqueue([b"unread"])
    reader.close()
    queue.close()
    assert (len(os.listdir("/proc/self/fd")), os.listdir("/dev/shm")) == before
