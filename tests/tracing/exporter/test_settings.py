from __future__ import annotations

import re
from pathlib import Path

import pytest

from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.exporter.settings import GRPC, HTTP, read_settings

P = "OTEL_EXPORTER_OTLP_PROTOCOL"


@pytest.mark.parametrize(
    ("protocol", "spelling", "endpoint"),
    [
        (GRPC, "collector", "http://collector:4317"),
        (GRPC, "collector:9", "http://collector:9"),
        (GRPC, "http://collector:9", "http://collector:9"),
        (GRPC, "https://collector:9/", "https://collector:9"),
        (GRPC, "http://collector:9/v1/traces", "http://collector:9"),
        (GRPC, "[::1]:9", "http://[::1]:9"),
        (GRPC, "[::1]", "http://[::1]:4317"),
        (HTTP, "collector", "http://collector:4318/v1/traces"),
        (HTTP, "collector:9", "http://collector:9/v1/traces"),
        (HTTP, "http://collector:9", "http://collector:9/v1/traces"),
        (HTTP, "https://collector:9/", "https://collector:9/v1/traces"),
        (HTTP, "http://collector:9/v1/traces", "http://collector:9/v1/traces"),
        (HTTP, "http://collector:9/own/path", "http://collector:9/own/path"),
    ],
)
def test_t11_every_spelling_of_the_option(protocol: str, spelling: str, endpoint: str) -> None:
    assert read_settings({P: protocol}, spelling).endpoint == endpoint


@pytest.mark.parametrize(
    ("env", "endpoint"),
    [
        ({}, "http://localhost:4317"),
        ({P: HTTP}, "http://localhost:4318/v1/traces"),
        ({P: HTTP, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:9"}, "http://c:9/v1/traces"),
        ({P: HTTP, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:9/base/"}, "http://c:9/base/v1/traces"),
        ({P: HTTP, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:9/v1/traces"}, "http://c:9/v1/traces"),
        ({P: HTTP, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:9"}, "http://c:9"),
        (
            {P: HTTP, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:1/x", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:9"},
            "http://t:1/x",
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "c:9"}, "http://c:9"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "c:9", "OTEL_EXPORTER_OTLP_INSECURE": "false"}, "https://c:9"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "c:9", "OTEL_EXPORTER_OTLP_CERTIFICATE": __file__}, "https://c:9"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:9", "OTEL_EXPORTER_OTLP_INSECURE": "false"}, "http://c:9"),
    ],
)
def test_endpoints_from_the_environment(env: dict[str, str], endpoint: str) -> None:
    assert read_settings(env).endpoint == endpoint


def test_the_option_comes_before_the_environment() -> None:
    assert read_settings({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:9"}, "mine:7").endpoint == "http://mine:7"


def test_the_traces_own_variables_come_first() -> None:
    env = {
        P: GRPC,
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": HTTP,
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "deflate",
    }
    settings = read_settings(env)
    assert (settings.protocol, settings.compression) == (HTTP, "deflate")


def test_defaults() -> None:
    settings = read_settings({})
    assert (settings.protocol, settings.compression, settings.enabled) == (GRPC, "none", True)
    assert (settings.flush_s, settings.delay_s, settings.batch_spans, settings.timeout_s) == (2.0, 1.0, 512, 10.0)


def test_batches_and_budgets() -> None:
    env = {
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "10",
        "OTEL_BSP_MAX_QUEUE_SIZE": "20",
        "OTEL_BSP_EXPORT_TIMEOUT": "5000",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "0.5",
    }
    settings = read_settings(env)
    assert (settings.delay_s, settings.batch_spans, settings.flush_s, settings.timeout_s) == (0.1, 10, 5.0, 0.5)
    assert read_settings(env | {"OTEL_BSP_MAX_QUEUE_SIZE": "7"}).batch_spans == 7
    assert read_settings(env | {"VLLM_LITE_TRACE_FLUSH_S": "0.5"}).flush_s == 0.5


@pytest.mark.parametrize(
    ("env", "enabled"),
    [
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": ""}, True),
        ({"OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_TRACES_EXPORTER": "none, otlp"}, True),
        ({"OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_SDK_DISABLED": "false"}, True),
    ],
)
def test_who_sends_at_all(env: dict[str, str], enabled: bool) -> None:
    assert read_settings(env).enabled is enabled


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (P, "http/json"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "carrier pigeon"),
        ("OTEL_TRACES_EXPORTER", "console"),
        ("OTEL_TRACES_EXPORTER", "otlp,zipkin"),
        ("OTEL_CONFIG_FILE", "otel.yaml"),
        ("OTEL_EXPERIMENTAL_CONFIG_FILE", "otel.yaml"),
        ("OTEL_PROPAGATORS", "tracecontext,b3"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "deflate"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "just-a-name"),
        ("OTEL_EXPORTER_OTLP_INSECURE", "maybe"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem"),
        ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "/nowhere/key.pem"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://collector"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-5"),
        ("OTEL_BSP_SCHEDULE_DELAY", "often"),
        ("VLLM_LITE_TRACE_FLUSH_S", "two"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(name: str, value: str) -> None:
    env = {name: value} | ({"OTEL_EXPORTER_OTLP_ENDPOINT": "c:9"} if name.endswith("INSECURE") else {})
    with pytest.raises(VLLMValidationError, match=f"^{name} is ") as caught:
        read_settings(env)
    assert caught.value.parameter == name


@pytest.mark.parametrize("value", ["unix:///x", "c:99999", "c:0", "http://c:grpc", "http://[::1"])
def test_a_bad_option_is_refused_by_its_name(value: str) -> None:
    with pytest.raises(VLLMValidationError, match=f"^otlp_traces_endpoint is {re.escape(repr(value))}; use host:port or a URL"):
        read_settings({}, value)


def test_tls_files_that_exist(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    assert read_settings({"OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "ca.pem")}).endpoint == "https://localhost:4317"
