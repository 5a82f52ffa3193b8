"""What the exporter process costs beside a busy engine: 256 requests at a time, 50 steps a second, 12,800 tokens a second.

    python benchmarks/trace_exporter.py [--seconds 20] [--levels 1 2 3] [--protocol grpc] [--tokens 200]

The records of such an engine are written in real time (no model, no front end), the exporter follows them as it follows any
run, and sends to a collector that takes everything and keeps nothing. Measured, once answers of full length end all the time:
the exporter's CPU time as a share of one core, and its memory; at the end, whether every span arrived.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.trace_load import Load
from vllm_lite.tracing.exporter.launch import ExporterProcess

STEPS_PER_S = 50
BARS = {1: 3.0, 3: 50.0}  # percent of a core


def collector(protocol: str) -> tuple[subprocess.Popen[str], int]:
    """A process that answers every export at once; it counts the requests and bytes that came."""
    child = subprocess.Popen(
        [sys.executable, __file__, "--collector", protocol], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    return child, int(child.stdout.readline())


def collect(protocol: str) -> None:
    """The collector's own process."""
    received = [0, 0]

    def take(body: bytes) -> bytes:
        received[0] += 1
        received[1] += len(body)
        return b""

    serve = _serve_grpc if protocol == "grpc" else _serve_http
    print(serve(take), flush=True)
    sys.stdin.read()
    print(*received, flush=True)


def _serve_grpc(take: object) -> int:
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    handler = grpc.unary_unary_rpc_method_handler(lambda body, context: take(body))
    service = grpc.method_handlers_generic_handler("opentelemetry.proto.collector.trace.v1.TraceService", {"Export": handler})
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    _serve_grpc.server = server  # lives as long as the process
    return port


def _serve_http(take: object) -> int:
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def play(load: Load, seconds: float) -> float:
    """Steps in real time for so many seconds; returns how many it were."""
    began = due = time.monotonic()
    while time.monotonic() < began + seconds:
        load.step(time.monotonic_ns())
        due += 1 / STEPS_PER_S
        time.sleep(max(due - time.monotonic(), 0))
    return time.monotonic() - began


def measure(level: int, options: argparse.Namespace) -> dict[str, float]:
    child, port = collector(options.protocol)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        run_dir.mkdir()
        load = Load(run_dir, level, tokens=options.tokens)
        exporter = ExporterProcess(run_dir, f"127.0.0.1:{port}")
        process = psutil.Process(exporter._child.pid)
        play(load, options.tokens / STEPS_PER_S + 2)
        before, steps = process.cpu_times(), load.steps
        seconds = play(load, options.seconds)
        after, steps, memory = process.cpu_times(), load.steps - steps, process.memory_info().rss
        load.close()
        exporter.close()
        arrived = not run_dir.exists()  # else it would keep what did not
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.close()
    requests, size = map(int, child.stdout.readline().split())
    child.wait()
    cpu = after.user + after.system - before.user - before.system
    tokens = steps * load.callers
    return {
        "level": level,
        "tokens a second": tokens / seconds,
        "share of a core at 12,800 tokens/s, %": 100 * cpu / tokens * 12_800,
        "us of CPU per token": 1e6 * cpu / tokens,
        "memory, MB": memory / 1e6,
        "requests": requests,
        "MB sent": size / 1e6,
        "everything arrived": arrived,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--protocol", choices=["grpc", "http/protobuf"], default="grpc")
    parser.add_argument("--tokens", type=int, default=200, help="of each answer")
    parser.add_argument("--collector", metavar="PROTOCOL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.collector:
        collect(options.collector)
        return 0
    os.environ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = options.protocol
    os.environ["VLLM_LITE_TRACE_FLUSH_S"] = "30"  # the run stops with 256 open requests, and shares its cores with others
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {options.protocol}")
    failed = False
    for level in options.levels:
        found = measure(level, options)
        print(", ".join(f"{name} {value:,.2f}".rstrip("0").rstrip(".") for name, value in found.items()), flush=True)
        failed |= found["share of a core at 12,800 tokens/s, %"] > BARS.get(level, 100.0) or not found["everything arrived"]
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
