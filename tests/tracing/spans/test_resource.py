from __future__ import annotations

import pytest

from tests.tracing import make
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.spans.resource import resource_attributes


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
