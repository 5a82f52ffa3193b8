from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.tracing import make
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.spans.environment import Limits, given_attributes, resource_attributes
from vllm_lite.tracing.spans.model import Event, Kind, Link, Span

SPAN = Span(
    make.core(),
    "a" * 32,
    "b" * 16,
    None,
    "x",
    Kind.INTERNAL,
    0,
    1,
    attributes={"text": "abcdef", "list": ["abcdef", "x"], "number": 123456, "flag": True},
    events=[Event("token", t, {"index": t, "n": 1}) for t in range(200)],
    links=[Link("c" * 32, f"{n:016x}", {"step": n, "tokens": 1}) for n in range(150)],
    dropped_events=5,
)


def test_there_is_no_limit_by_default() -> None:
    limits = Limits.read({})
    assert not limits.any
    assert limits.apply(SPAN) == SPAN


def test_of_events_the_first_and_the_last_stay() -> None:
    limits = Limits.read({"OTEL_SPAN_EVENT_COUNT_LIMIT": "5"})
    span = limits.apply(SPAN)
    assert [event.t for event in span.events] == [0, 1, 2, 198, 199]
    assert span.dropped_events == 5 + 195


@pytest.mark.parametrize(("count", "expected"), [(0, []), (1, [0]), (2, [0, 199])])
def test_few_events(count: int, expected: list[int]) -> None:
    assert [event.t for event in Limits(events=count).apply(SPAN).events] == expected


def test_every_variable_is_honoured_and_the_special_ones_come_first() -> None:
    general = {"OTEL_ATTRIBUTE_COUNT_LIMIT": "3", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "4"}
    assert Limits.read(general) == Limits(attributes=3, text=4, event_attributes=3, link_attributes=3)
    special = {
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "1",
        "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "2",
        "OTEL_SPAN_EVENT_COUNT_LIMIT": "5",
        "OTEL_SPAN_LINK_COUNT_LIMIT": "6",
        "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT": "7",
        "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT": "8",
    }
    assert Limits.read(general | special) == Limits(1, 2, 5, 6, 7, 8)
    assert Limits.read({"OTEL_SPAN_EVENT_COUNT_LIMIT": "0"}).events == 0


def test_what_goes_is_counted() -> None:
    span = Limits(attributes=2, text=3, links=100, event_attributes=1, link_attributes=0).apply(SPAN)
    assert span.attributes == {"text": "abc", "list": ["abc", "x"]}
    assert (span.dropped_attributes, span.dropped_links, len(span.links)) == (2, 50, 100)
    assert span.events[7].attributes == {"index": 7}
    assert span.links[7].attributes == {}
    assert SPAN.attributes["text"] == "abcdef"
    assert replace(span, attributes={}).dropped_events == 5


@pytest.mark.parametrize("value", ["-1", "many", "1.5"])
def test_a_limit_that_is_no_number_is_refused_by_name(value: str) -> None:
    with pytest.raises(VLLMValidationError, match="OTEL_SPAN_LINK_COUNT_LIMIT"):
        Limits.read({"OTEL_SPAN_LINK_COUNT_LIMIT": value})


@pytest.mark.parametrize(
    ("env", "names"),
    [
        ({}, ("vllm-lite.frontend", "vllm-lite.engine-core", "vllm-lite.worker")),
        ({"OTEL_SERVICE_NAME": "chat"}, ("chat", "chat.engine-core", "chat.worker")),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=res"}, ("res", "res.engine-core", "res.worker")),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=r", "OTEL_SERVICE_NAME": "s"}, ("s", "s.engine-core", "s.worker")),
    ],
)
def test_a_name_for_each_role(env: dict[str, str], names: tuple[str, ...]) -> None:
    processes = (make.front(), make.core(), make.worker())
    assert tuple(resource_attributes(process, env)["service.name"] for process in processes) == names


def test_who_and_where() -> None:
    assert resource_attributes(make.core(), {"OTEL_RESOURCE_ATTRIBUTES": "team=a%20b, region = x,"}) == {
        "service.namespace": "vllm-lite",
        "host.name": "host",
        "team": "a b",
        "region": "x",
        "service.name": "vllm-lite.engine-core",
        "service.instance.id": "host:2:engine-core",
        "process.pid": 2,
    }


def test_what_is_no_pair_is_refused_by_name() -> None:
    with pytest.raises(VLLMValidationError, match="OTEL_RESOURCE_ATTRIBUTES"):
        resource_attributes(make.core(), {"OTEL_RESOURCE_ATTRIBUTES": "team"})


@pytest.mark.parametrize("name", ["OTEL_RESOURCE_ATTRIBUTES", "OTEL_SERVICE_NAME"])
def test_what_is_no_utf_8_is_refused(name: str) -> None:
    with pytest.raises(VLLMValidationError, match=f"^{name} must be text without lone surrogates"):
        given_attributes({name: "a=\udcff"})
