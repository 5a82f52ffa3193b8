"""What the OTEL_* variables say of spans: the resource that each process is, and how much one span may hold.

Process: readers (exporter, writers). Knows: variables, processes, spans. Does not know: where spans go. There is no limit by
default: OpenTelemetry's SDK keeps a span's last 128 events, so that a long answer would lose its first token.
Mirrors: vllm/tracing/otel.py (the resource)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import unquote

import msgspec

from vllm_lite import __version__
from vllm_lite.config.checks import check_text
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.process import Process
from vllm_lite.tracing.records import AttributeValue
from vllm_lite.tracing.spans.model import Attributes, Event, Link, Span

T = TypeVar("T")
SCOPE = {"name": "vllm_lite.tracing", "version": __version__}


def resource_attributes(process: Process, environ: Mapping[str, str]) -> Attributes:
    """The resource of `process`, as it was read or else as the environment has it.

    service.name is vllm-lite.<role>; a name X that the environment gives becomes X for the front end and X.<role> for others.
    """
    if process.resource is not None:
        return dict(process.resource)
    given = given_attributes(environ)
    name = environ.get("OTEL_SERVICE_NAME", "").strip() or given.pop("service.name", "")
    own = f"vllm-lite.{process.role}" if not name else name if process.role == "frontend" else f"{name}.{process.role}"
    return {
        "service.namespace": "vllm-lite",
        "host.name": process.host,
        **given,
        "service.name": own,
        "service.instance.id": f"{process.host}:{process.pid}:{process.role}",
        "process.pid": process.pid,
    }


def given_attributes(environ: Mapping[str, str]) -> dict[str, str]:
    """OTEL_RESOURCE_ATTRIBUTES, percent-decoded. Raises VLLMValidationError for what is no name=value pair, or no UTF-8."""
    for variable in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        check_text(variable, environ.get(variable), "text", optional=True)
    attributes = {}
    for item in environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        name, equals, value = item.partition("=")
        if not item.strip():
            continue
        if not equals or not name.strip():
            parameter = "OTEL_RESOURCE_ATTRIBUTES"
            raise VLLMValidationError(f"{parameter} holds {item!r}; use name=value pairs", parameter=parameter, value=item)
        attributes[name.strip()] = unquote(value.strip())
    return attributes


@dataclass(frozen=True)
class Limits:
    """The most that a span may hold; None is no limit. `text` is in characters. Of events both ends stay."""

    attributes: int | None = None
    text: int | None = None
    events: int | None = None
    links: int | None = None
    event_attributes: int | None = None
    link_attributes: int | None = None

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Limits:
        """Those that `environ` sets. Raises VLLMValidationError for one that is no number."""

        def limit(*names: str) -> int | None:
            for name in (f"OTEL_{name}_LIMIT" for name in names):
                value = environ.get(name, "").strip()
                if value.isdecimal():
                    return int(value)
                if value:
                    told = f"{name} is {value!r}; use a whole number from 0 up"
                    raise VLLMValidationError(told, parameter=name, value=value)
            return None

        return cls(
            attributes=limit("SPAN_ATTRIBUTE_COUNT", "ATTRIBUTE_COUNT"),
            text=limit("SPAN_ATTRIBUTE_VALUE_LENGTH", "ATTRIBUTE_VALUE_LENGTH"),
            events=limit("SPAN_EVENT_COUNT"),
            links=limit("SPAN_LINK_COUNT"),
            event_attributes=limit("EVENT_ATTRIBUTE_COUNT", "ATTRIBUTE_COUNT"),
            link_attributes=limit("LINK_ATTRIBUTE_COUNT", "ATTRIBUTE_COUNT"),
        )

    @property
    def any(self) -> bool:
        """Whether there is anything to do."""
        return self != Limits()

    def apply(self, span: Span) -> Span:
        """The span within the limits, with what it lost counted."""
        events, links = _ends(span.events, self.events), span.links[: self.links]
        attributes = self._attributes(span.attributes, self.attributes)
        return msgspec.structs.replace(
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
        if self.text is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, str):
            return value[: self.text]
        return [item[: self.text] if isinstance(item, str) else item for item in value]


def _ends(items: list[T], count: int | None) -> list[T]:
    """The first and the last of `items`, `count` together."""
    if count is None or len(items) <= count:
        return items
    last = count // 2
    return items[: count - last] + items[len(items) - last :]
