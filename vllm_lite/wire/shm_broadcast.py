"""A queue of messages in shared memory, from one process to several.

Process: engine core and workers. Knows: bytes in a ring, and the event counters that wake the other side. Does not know: what a
message means. The memory and the counters are nameless file descriptors that a child inherits: two engines never meet, and
nothing is left behind by a crash. A message longer than the ring passes through it in pieces.
Mirrors: vllm/distributed/device_communicators/shm_broadcast.py
"""

from __future__ import annotations

import mmap
import os
import select
import struct
import time
from collections.abc import Sequence

import msgspec

from vllm_lite.wire.serial_utils import Buffer

DEFAULT_CAPACITY = 4 << 20  # bytes
_WORD = 8
_LENGTH = struct.Struct("<Q")


class QueueCancelledError(RuntimeError):
    """This side was told to stop waiting."""


class MessageQueue:
    """One writer, `num_readers` readers; every reader gets every message.

    The header holds, as 8-byte words, the bytes written and the bytes read by each reader, counted for ever; a position in the
    ring is such a count modulo its capacity. Each side changes only its own word, after the data, and then adds to an event
    counter; the system call is also what orders memory between the two.
    """

    def __init__(self, num_readers: int, capacity: int, rank: int | None, fds: Sequence[int]) -> None:
        """Use `create()` to make one and `open()` to join one."""
        self._num_readers, self._capacity, self._rank = num_readers, capacity, rank
        self._memory_fd, self._space_fd, *self._data_fds = fds
        self._map = mmap.mmap(self._memory_fd, _WORD * (1 + num_readers) + capacity)
        view = memoryview(self._map)
        self._words = view[: _WORD * (1 + num_readers)].cast("Q")
        self._ring = view[_WORD * (1 + num_readers) :]
        self._done = 0  # written, or read, by this side
        self._cancelled = False

    @classmethod
    def create(cls, num_readers: int = 1, rank: int | None = None, capacity: int = DEFAULT_CAPACITY) -> MessageQueue:
        """A new queue, of which the caller is reader `rank`, or (None) the writer."""
        memory_fd = os.memfd_create("vllm-lite-queue")
        os.ftruncate(memory_fd, _WORD * (1 + num_readers) + capacity)
        events = [os.eventfd(0) for _ in range(1 + num_readers)]
        return cls(num_readers, capacity, rank, [memory_fd, *events])

    @classmethod
    def open(cls, handle: str, rank: int | None) -> MessageQueue:
        """Join by `handle`, in a process that inherited its `fds`: as reader `rank`, or (None) as the writer."""
        num_readers, capacity, *fds = map(int, handle.split(","))
        return cls(num_readers, capacity, rank, fds)

    @property
    def fds(self) -> list[int]:
        """What a child must inherit (`pass_fds`)."""
        return [self._memory_fd, self._space_fd, *self._data_fds]

    def handle(self) -> str:
        """What a child needs to know, for its command line."""
        return ",".join(map(str, [self._num_readers, self._capacity, *self.fds]))

    def enqueue(self, frames: Sequence[Buffer]) -> None:
        """Write one message, waiting while a reader is a whole ring behind. Raises QueueCancelledError once cancelled."""
        message = msgspec.msgpack.encode(frames)
        self._write(memoryview(_LENGTH.pack(len(message)) + message))
        self._publish()

    def dequeue(self, timeout: float | None = None) -> list[bytes]:
        """The next message. Raises TimeoutError after `timeout` seconds, QueueCancelledError once cancelled."""
        self._wait_for_data(timeout)
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        message = self._read(length)
        self._publish()
        return msgspec.msgpack.decode(message, type=list[bytes])

    def cancel(self) -> None:
        """Wake this side, waiting in another thread, with QueueCancelledError; for good."""
        self._cancelled = True
        for fd in (self._space_fd, *self._data_fds):
            os.eventfd_write(fd, 1)

    def close(self) -> None:
        """Unmap and close; the other side keeps its own."""
        self._words.release()
        self._ring.release()
        self._map.close()
        for fd in self.fds:
            os.close(fd)

    def _write(self, piece: memoryview) -> None:
        while len(piece):
            room = self._capacity - (self._done - min(self._words[1:]))
            if room == 0:
                self._publish()  # what is there already must be read first
                self._wait(self._space_fd, None)
                continue
            at = self._done % self._capacity
            count = min(room, len(piece), self._capacity - at)
            self._ring[at : at + count] = piece[:count]
            self._done += count
            piece = piece[count:]

    def _read(self, length: int) -> bytes:
        parts = []
        while length:
            self._wait_for_data(None)
            at = self._done % self._capacity
            count = min(self._words[0] - self._done, length, self._capacity - at)
            parts.append(bytes(self._ring[at : at + count]))
            self._done += count
            length -= count
            if length:
                self._publish()  # the writer may wait for this room
        return b"".join(parts)

    def _publish(self) -> None:
        """Show the other side how far this one has come, and wake it."""
        if self._rank is None:
            self._words[0] = self._done
            for fd in self._data_fds:
                os.eventfd_write(fd, 1)
        else:
            self._words[1 + self._rank] = self._done
            os.eventfd_write(self._space_fd, 1)

    def _wait_for_data(self, timeout: float | None) -> None:
        assert self._rank is not None, "the writer does not read"
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._words[0] == self._done:
            self._wait(self._data_fds[self._rank], deadline)

    def _wait(self, fd: int, deadline: float | None) -> None:
        """Sleep until the other side has moved (perhaps before this call)."""
        if self._cancelled:
            raise QueueCancelledError("cancelled")
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        if not poller.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError("no message in time")
        os.eventfd_read(fd)  # the caller looks again, so what came before a cancellation is still read
