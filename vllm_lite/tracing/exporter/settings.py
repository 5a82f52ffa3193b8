"""What the OTEL_* environment variables ask of the exporter: each is honoured, or refused by name.

Process: front end (to refuse early) and exporter. Knows: the variables and where spans go. Does not know: OpenTelemetry's
classes; headers, timeout and TLS are read by the official exporters themselves.
Mirrors: vllm/tracing/otel.py (get_span_exporter)
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from vllm_lite.exceptions import VLLMValidationError

OTLP = "OTEL_EXPORTER_OTLP_"
GRPC, HTTP = "grpc", "http/protobuf"
PORTS = {GRPC: 4317, HTTP: 4318}
PATH = "/v1/traces"
NUMBER = r"\d+(\.\d+)?"


@dataclass(frozen=True)
class Settings:
    """Where to and how. `flush_s` bounds what is left to do once the engine is gone; `enabled` False sends nothing."""

    endpoint: str
    protocol: str
    compression: str  # none | gzip | deflate
    timeout_s: float  # of one export, all tries of the official exporter together
    enabled: bool
    flush_s: float
    delay_s: float  # between two looks at the spools
    batch_spans: int  # sent together; no more than these wait, so that a queue's size bounds them too


def read_settings(environ: Mapping[str, str], endpoint: str | None = None) -> Settings:
    """The settings that `environ` asks for, with `--otlp-traces-endpoint` before the variables.

    Raises VLLMValidationError that names the variable (or the option) and what would be accepted.
    """
    _refuse_unsupported(environ)
    name, protocol = _otlp(environ, "PROTOCOL", GRPC)
    if protocol not in PORTS:
        raise _refused(name, protocol, f"{GRPC!r} or {HTTP!r}; this version does not speak another encoding")
    name, compression = _otlp(environ, "COMPRESSION", "none")
    compressions = ("none", "gzip") if protocol == GRPC else ("none", "gzip", "deflate")
    if compression.lower() not in compressions:
        raise _refused(name, compression, " or ".join(compressions))
    name, timeout = _otlp(environ, "TIMEOUT", "10")
    if not re.fullmatch(NUMBER, timeout) or float(timeout) == 0:
        raise _refused(name, timeout, "a number of seconds above 0")
    batch_spans = int(_number(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)) or 512
    queue_spans = int(_number(environ, "OTEL_BSP_MAX_QUEUE_SIZE", batch_spans)) or batch_spans
    return Settings(
        endpoint=_endpoint(environ, endpoint, protocol),
        protocol=protocol,
        compression=compression.lower(),
        timeout_s=float(timeout),
        enabled=_enabled(environ),
        flush_s=_number(environ, "VLLM_LITE_TRACE_FLUSH_S", _number(environ, "OTEL_BSP_EXPORT_TIMEOUT", 2000) / 1000),
        delay_s=_number(environ, "OTEL_BSP_SCHEDULE_DELAY", 1000) / 1000,
        batch_spans=min(batch_spans, queue_spans),
    )


def _refused(name: str, value: str, accepted: str) -> VLLMValidationError:
    return VLLMValidationError(f"{name} is {value!r}; use {accepted}", parameter=name, value=value)


def _refuse_unsupported(environ: Mapping[str, str]) -> None:
    for name in ("OTEL_CONFIG_FILE", "OTEL_EXPERIMENTAL_CONFIG_FILE"):
        if environ.get(name):
            raise _refused(name, environ[name], "the other OTEL_* variables; a configuration file is not read")
    for kind in map(str.strip, environ.get("OTEL_PROPAGATORS", "").split(",")):
        if kind not in ("", "tracecontext", "baggage"):
            raise _refused("OTEL_PROPAGATORS", kind, "tracecontext and baggage; headers of other kinds are not read")
    for suffix in ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"):
        name, path = _otlp(environ, suffix, "")
        if path and not Path(path).is_file():
            raise _refused(name, path, "the path of a file that exists")
    name, headers = _otlp(environ, "HEADERS", "")
    if any("=" not in item for item in headers.split(",") if item.strip()):
        raise _refused(name, headers, "name=value pairs with commas between them")


def _otlp(environ: Mapping[str, str], suffix: str, default: str) -> tuple[str, str]:
    """Name and value of the traces' own variable, else of the one for all signals, else the default."""
    for name in (f"{OTLP}TRACES_{suffix}", f"{OTLP}{suffix}"):
        if environ.get(name, "").strip():
            return name, environ[name].strip()
    return f"{OTLP}{suffix}", default


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    value = environ.get(name, "").strip()
    if not value:
        return default
    if not re.fullmatch(NUMBER, value):
        raise _refused(name, value, "a number from 0 up")
    return float(value)


def _endpoint(environ: Mapping[str, str], option: str | None, protocol: str) -> str:
    """The full URL to send to. A URL in the traces' own variable is taken as it is, as OpenTelemetry says; others get what they
    lack: a scheme, a port where there was no scheme, and for HTTP the path."""
    name, value = ("otlp_traces_endpoint", option) if option else _otlp(environ, "ENDPOINT", f"localhost:{PORTS[protocol]}")
    bare = "://" not in value
    full = f"{_scheme(environ)}://{value}" if bare else value
    try:
        url = urlsplit(full)
        known = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:  # a port that is no number, or an address in half a bracket
        known = False
    if not known:
        raise _refused(name, value, f"host:port or a URL such as http://localhost:{PORTS[protocol]}")
    port = f":{PORTS[protocol]}" if bare and ":" not in url.netloc.rpartition("]")[2] else ""
    base, path = f"{url.scheme}://{url.netloc}{port}", url.path.rstrip("/")
    if protocol == GRPC:
        return base
    if name == f"{OTLP}ENDPOINT":
        return f"{base}{path.removesuffix(PATH)}{PATH}"
    if name == f"{OTLP}TRACES_ENDPOINT" and not bare:
        return value
    return f"{base}{path or PATH}"


def _scheme(environ: Mapping[str, str]) -> str:
    """What host:port means: plain text, unless something says TLS."""
    name, insecure = _otlp(environ, "INSECURE", "")
    if insecure.lower() not in ("", "true", "false"):
        raise _refused(name, insecure, "true or false")
    secure = insecure.lower() == "false" or bool(_otlp(environ, "CERTIFICATE", "")[1])
    return "https" if secure and insecure.lower() != "true" else "http"


def _enabled(environ: Mapping[str, str]) -> bool:
    exporters = [item.strip() for item in environ.get("OTEL_TRACES_EXPORTER", "").split(",") if item.strip()]
    for item in exporters:
        if item not in ("otlp", "none"):
            raise _refused("OTEL_TRACES_EXPORTER", item, "otlp or none; `vllm-lite trace show` prints spans on the console")
    disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return not disabled and (not exporters or "otlp" in exporters)
