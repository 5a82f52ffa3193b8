"""A span as we build it: the shape that every writer and the exporter start from.

Process: readers (exporter, check, writers). Knows: names, ids, times. Does not know: OpenTelemetry, file formats.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from vllm_lite.tracing import records as rec
from vllm_lite.tracing.process import Process
from vllm_lite.tracing.records import AttributeValue

Attributes = dict[str, AttributeValue]
Recorded = rec.Accept | rec.Receive | rec.Schedule | rec.Call | rec.Serve  # records that a span begins with

REQUEST_ID = "vllm_lite.request.id"
STEP_INDEX = "vllm_lite.step.index"
INCOMPLETE = "vllm_lite.incomplete"  # the end is a guess: what would tell it never came, or was lost
ERROR_TYPE = "error.type"
ENGINE_DEAD = "engine_dead"


class Kind(enum.IntEnum):
    """A span's role in its trace; the numbers are OTLP's."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3
    PRODUCER = 4
    CONSUMER = 5


class Event(NamedTuple):
    """Something that happened at one moment (ns since 1970)."""

    name: str
    t: int
    attributes: Attributes


@dataclass(slots=True)
class Link:
    """Points at a span of another trace. One that many spans hold is `encoded` once, by whoever sends them."""

    trace_id: str
    span_id: str
    attributes: Attributes
    encoded: bytes = field(default=b"", repr=False, compare=False)


class Span(msgspec.Struct):
    """One span. `start` and `end` are ns since 1970; ids are lower-case hex. `error` is the status description of a span that
    failed, None for one that did not (its status stays unset)."""

    process: Process
    trace_id: str
    span_id: str
    parent_span_id: str | None
    name: str
    kind: Kind
    start: int
    end: int
    attributes: Attributes = {}
    events: list[Event] = []
    links: list[Link] = []
    error: str | None = None
    tracestate: str | None = None
    remote_parent: bool = False  # the parent is a span of another process
    dropped_attributes: int = 0
    dropped_events: int = 0
    dropped_links: int = 0

    @classmethod
    def recorded(cls, process: Process, record: Recorded, name: str, kind: Kind, t: tuple[int, int]) -> Span:
        """The span whose ids `record` holds; `t` is monotonic time. A parent that it names is another process's."""
        parent: str | None = getattr(record, "parent_span_id", None)
        ids, times = (record.trace_id, record.span_id, parent), (process.wall(t[0]), process.wall(t[1]))
        return cls(process, *ids, name, kind, *times, remote_parent=parent is not None)

    def child(
        self,
        name: str,
        kind: Kind,
        t: tuple[int, int],
        attributes: Attributes | None = None,
        *,
        span_id: str | None = None,
        process: Process | None = None,
        number: int = 0,
    ) -> Span:
        """A span right below this one; `t` is monotonic time of its process. Where no header carried its id, that is derived
        from the parent's, the name and, where several have the same, a `number`."""
        process, parent = process or self.process, self.span_id
        ids, offset = (self.trace_id, span_id or _digest(f"{parent}/{name}/{number}", 8), parent), process.offset
        remote, times = process is not self.process, (t[0] + offset, t[1] + offset)
        return Span(process, *ids, name, kind, *times, attributes or {}, [], [], None, None, remote)

    def hold(self, spans: Iterable[Span]) -> None:
        """Last until those of `spans` are over that are right below this one."""
        self.end = max([self.end, *(span.end for span in spans if span.parent_span_id == self.span_id)])

    def fail(self, error_type: str, description: str) -> None:
        """Give the span status ERROR."""
        self.attributes[ERROR_TYPE] = error_type
        self.error = description

    def leave_open(self, description: str = "") -> None:
        """Its end is a guess. `description` makes it an error where its process died."""
        self.attributes[INCOMPLETE] = True
        if description and self.process.died:
            self.fail("frontend_dead" if self.process.role == "frontend" else ENGINE_DEAD, description)


def derived_id(*parts: str | int) -> str:
    """The id of a span that no header ever carried: the same parts give the same id, whoever builds the span, and when."""
    return _digest("/".join(map(str, parts)), 8)


def derived_trace_id(*parts: str | int) -> str:
    """The same for a trace."""
    return _digest("/".join(map(str, parts)), 16)


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()


def known(attributes: Mapping[str, AttributeValue | None]) -> Attributes:
    """Without the unset ones: zero, False and "" are values, None is none."""
    return {name: value for name, value in attributes.items() if value is not None}


def messaging(operation: str, kind: str, destination: str) -> Attributes:
    """The messaging conventions' attributes; `kind` is "send" or "process"."""
    return {
        "messaging.system": "zeromq",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": destination,
    }
