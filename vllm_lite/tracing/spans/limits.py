"""The OTEL_*_LIMIT variables: none by default; where one is set, what goes is counted, and of events both ends stay.

Process: readers (exporter, writers). Knows: spans. Does not know: where they go. OpenTelemetry's SDK keeps the last 128
events by default, so that a long answer would lose its first token.
Mirrors: nothing in vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.records import AttributeValue
from vllm_lite.tracing.spans.model import Attributes, Event, Link, Span

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """The most that a span may hold; None is no limit. `text` is in characters."""

    attributes: int | None = None
    text: int | None = None
    events: int | None = None
    links: int | None = None
    event_attributes: int | None = None
    link_attributes: int | None = None

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Limits:
        """Those that `environ` sets. Raises VLLMValidationError for one that is no number."""
        general = _limit(environ, "OTEL_ATTRIBUTE_COUNT_LIMIT")
        return cls(
            attributes=_limit(environ, "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", general),
            text=_limit(
                environ, "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", _limit(environ, "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT")
            ),
            events=_limit(environ, "OTEL_SPAN_EVENT_COUNT_LIMIT"),
            links=_limit(environ, "OTEL_SPAN_LINK_COUNT_LIMIT"),
            event_attributes=_limit(environ, "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", general),
            link_attributes=_limit(environ, "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", general),
        )

    @property
    def any(self) -> bool:
        """Whether there is anything to do."""
        return self != Limits()

    def apply(self, span: Span) -> Span:
        """The span within the limits, with what it lost counted."""
        events, links = _ends(span.events, self.events), span.links[: self.links]
        attributes = self._attributes(span.attributes, self.attributes)
        return replace(
            span,
            attributes=attributes,
            events=[Event(e.name, e.t, self._attributes(e.attributes, self.event_attributes)) for e in events],
            links=[Link(k.trace_id, k.span_id, self._attributes(k.attributes, self.link_attributes)) for k in links],
            dropped_attributes=span.dropped_attributes + len(span.attributes) - len(attributes),
            dropped_events=span.dropped_events + len(span.events) - len(events),
            dropped_links=span.dropped_links + len(span.links) - len(links),
        )

    def _attributes(self, attributes: Attributes, count: int | None) -> Attributes:
        return {name: self._cut(value) for name, value in list(attributes.items())[:count]}

    def _cut(self, value: AttributeValue) -> AttributeValue:
        if self.text is None:
            return value
        if isinstance(value, str):
            return value[: self.text]
        if isinstance(value, (bool, int, float)):
            return value
        return [item[: self.text] if isinstance(item, str) else item for item in value]


def _ends(items: list[T], count: int | None) -> list[T]:
    """The first and the last of `items`, `count` together."""
    if count is None or len(items) <= count:
        return items
    last = count // 2
    return items[: count - last] + items[len(items) - last :]


def _limit(environ: Mapping[str, str], name: str, default: int | None = None) -> int | None:
    value = environ.get(name, "").strip()
    if not value:
        return default
    if not value.isdecimal():
        raise VLLMValidationError(f"{name} is {value!r}; use a whole number from 0 up", parameter=name, value=value)
    return int(value)
