"""Who a span comes from: the OpenTelemetry resource of each process.

Process: readers (exporter, writers). Knows: OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES. Does not know: spans.
Mirrors: vllm/tracing/otel.py (the resource)
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.process import Process

Resource = dict[str, str | int]


def resource_attributes(process: Process, environ: Mapping[str, str]) -> Resource:
    """The resource of `process`.

    service.name is vllm-lite.<role>; a name X that the environment gives becomes X for the front end and X.<role> for others.
    """
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
    """OTEL_RESOURCE_ATTRIBUTES, percent-decoded. Raises VLLMValidationError for what is no name=value pair."""
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
