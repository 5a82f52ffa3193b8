"""A request's mailbox: one slot. What comes while it is full is stapled to what lies in it.

Process: front end, on the event loop. Knows: one request's outputs and the one task that waits for them. Does not know: where
outputs come from. Several readers of one mailbox are an error.
Mirrors: vllm/v1/engine/output_processor.py (RequestOutputCollector)
"""

import asyncio
import weakref
from collections.abc import Callable
from typing import Any

from vllm_lite.frontend.stamps import TOKEN_LEVEL, Stamps
from vllm_lite.outputs import STREAM_FINISHED, PoolingRequestOutput, RequestOutput
from vllm_lite.sampling_params import RequestOutputKind
from vllm_lite.tracing.recorder import now_ns
from vllm_lite.tracing.records import KEPT_BACK, PUT, STAPLED
from vllm_lite.tracing.request_trace import RequestTrace

Output = RequestOutput | PoolingRequestOutput


class RequestOutputCollector:
    """Hands outputs from the output handler to `generate()`.

    With DELTA later outputs are appended to the one in the slot; with the other kinds they replace it, each answer of n > 1 on
    its own. What happens here is counted, traced or not: that is no slower than to ask. `trace` and `stamps` are the request's,
    where it is traced.
    """

    __slots__ = (
        "__weakref__",
        "_failed",
        "_seen",
        "_stamps",
        "_take",
        "_take_of_several",
        "_waiter",
        "aggregate",
        "input_error",
        "kept_back",
        "left",
        "output",
        "puts",
        "req",
        "request_id",
        "staples",
        "takes",
        "trace",
    )

    def __init__(
        self,
        output_kind: RequestOutputKind,
        request_id: str,
        trace: RequestTrace | None = None,
        stamps: Stamps | None = None,
    ) -> None:
        self.output: Any = None  # Output, Exception or None
        self._failed = False  # it is an exception: asking this is quicker than asking for its type
        self._waiter: asyncio.Future[None] | None = None
        self.puts = self.staples = self.takes = self.left = self.kept_back = 0
        self._take: Callable[[tuple[int, int]], None] | None = None
        self._take_of_several: Callable[[int, int], None] | None = None
        if stamps is not None and trace is not None and trace.level >= TOKEN_LEVEL:
            if trace.several:
                self._take_of_several = stamps.take_of_several
            else:
                self._take = stamps.take
        self.aggregate = output_kind is RequestOutputKind.DELTA
        self.request_id = request_id
        self.input_error: Exception | None = None  # what the caller's own generator of prompt parts raised
        self.trace = trace
        self.req = 0 if trace is None else trace.req  # 0: not traced
        self._stamps = stamps
        # Of snapshots: how many tokens of each answer the caller has.
        self._seen: dict[int, int] | None = None if trace is None or self.aggregate else {}
        if trace is not None:
            trace.mailbox = weakref.ref(self)

    def put(self, output: Output | Exception) -> str:
        """Put `output` into the slot, never blocking; returns the letter's fate, one of `records`' PUT, STAPLED and KEPT_BACK.

        An exception replaces whatever lies there and stays until it is taken: outputs that come later are dropped.
        """
        if isinstance(output, Exception):
            return self._put_error(output)
        if self.output is not None:
            return self._put_on(self.output, output)
        self.output = output
        self.puts += 1
        waiter = self._waiter  # as _wake() does; this is where nearly every token comes by
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)
        return PUT

    def put_farewell(self, output: Output) -> None:
        """Put the last output of a request that was given up; it comes in no bag."""
        fate = self.put(output)
        if self._stamps is not None and self.trace is not None:
            self._stamps.farewell(self.trace, fate)

    def finish(self) -> None:
        """Nothing more will come: what lies in the slot is the last output, or STREAM_FINISHED is."""
        if self.output is None:
            self.output = STREAM_FINISHED
            self._wake()
        elif not self._failed:
            self.output.finished = True

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _put_error(self, error: Exception) -> str:
        if self._failed:
            return KEPT_BACK
        self.left += self._letter() is not None
        self._failed = True
        self.output = error
        self._wake()
        return PUT

    def _put_on(self, present: Output, output: Output) -> str:
        """The slot is full: the reader has been woken and has not had its turn."""
        if self._failed:
            return KEPT_BACK
        if isinstance(present, RequestOutput) and isinstance(output, RequestOutput):
            present.add(output, aggregate=self.aggregate)
        else:
            self.output = output
        self.puts += 1
        self.staples += 1
        return STAPLED

    async def get(self) -> Output:
        """Take what lies in the slot, having waited until something does. Raises the exception that was put there."""
        while self.output is None:
            if self._waiter is not None and not self._waiter.done():
                raise RuntimeError(f"two tasks read the outputs of request {self.request_id!r}; one mailbox has one reader")
            self._waiter = asyncio.Future()
            await self._waiter
        return self._take_out()

    def get_nowait(self) -> Output | None:
        """Take what lies in the slot, or None. Raises the exception that was put there."""
        return None if self.output is None else self._take_out()

    def _take_out(self) -> Output:
        output, self.output = self.output, None
        if self._failed:
            self._failed = False
            self.close(output)
            raise output
        taken: Output = output
        if taken is STREAM_FINISHED:
            self.close()
            return taken
        self.takes += 1
        take = self._take
        if take is not None:
            take((self.req, now_ns()))
        if self._seen is not None or self._take_of_several is not None:
            num_new = self._num_new(taken)
            if self._take_of_several is not None:
                self._take_of_several(self.req, num_new)
        if taken.finished:
            self.close()
        return taken

    def close(self, error: Exception | None = None) -> None:
        """Nobody will read any more, or the reader gets `error`: a traced request that has not ended before ends here."""
        trace = self.trace
        if trace is None or self._stamps is None or trace.closed:
            return
        left = self._letter()
        self.left += left is not None
        trace.left_tokens = 0 if left is None else self._num_new(left)
        self._stamps.close_request(trace, error, self)

    def _letter(self) -> Output | None:
        """What lies in the slot to be taken: no error, and not the mere end."""
        return None if self._failed or self.output is STREAM_FINISHED else self.output

    def _num_new(self, output: Output) -> int:
        """How many tokens this brings that its caller did not have; once for each output."""
        if isinstance(output, PoolingRequestOutput):
            return 0
        if self._seen is None:
            return sum(len(part.token_ids) for part in output.outputs)
        had, seen = sum(self._seen.values()), self._seen
        seen.update((part.index, len(part.token_ids)) for part in output.outputs)
        return sum(seen.values()) - had

    def __del__(self) -> None:
        self.close()
