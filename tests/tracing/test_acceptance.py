"""The acceptance checks of the tracing design that lie here, by number, on the records of one real engine. Of the others: the
command under load (tests/flow), the loop's own cost (benchmarks)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tests.tracing.journeys import CALLER_SPAN, CALLER_TRACE, Journeys, Recorded, params, play
from tests.tracing.receiver import GRPC, HTTP, attributes, receiver
from tests.tracing.writers.test_otlp_json import parse
from vllm_lite import AsyncLLM
from vllm_lite.tracing.check import check_run, engine_dead, reachable
from vllm_lite.tracing.context import SpanContext
from vllm_lite.tracing.export import write_files
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.reader import RunReader

CALLER = SpanContext(CALLER_TRACE, CALLER_SPAN, sampled=True)


def rules(run: Run) -> dict[str, tuple[int, list[str]]]:
    return {finding.rule: (finding.checked, finding.failures) for finding in check_run(run)}


def test_1_from_the_callers_span_every_process_is_reached(worked: Recorded) -> None:
    assert reachable(worked.run, CALLER, ("frontend", "engine-core", "worker")).failures == []
    stranger = SpanContext(CALLER_TRACE, "f" * 16, sampled=True)
    assert len(reachable(worked.run, stranger, ("frontend", "worker")).failures) == 2


@pytest.mark.parametrize("rule", ["no orphans", "unique span ids", "one root per trace"])
def test_2_no_orphans_no_id_twice_one_root(told: Recorded, rule: str) -> None:
    checked, failures = rules(told.run)[rule]
    assert checked > 100
    assert failures == []


def test_3_nesting_to_the_nanosecond(told: Recorded) -> None:
    checked, failures = rules(told.run)["nesting"]
    assert checked > len(told.spans)
    assert failures == []


def test_4_tokens_are_the_same_everywhere(told: Recorded) -> None:
    for request in told.run.requests:
        close, name = request.close, request.accept.external_id
        if close is None or close.outcome != "finished" or name == "vector":
            continue
        events = [event for event in told.root(name).events if event.name == "gen_ai.token.generated"]
        counted = sum(int(str(event.attributes["n"])) for event in events)
        assert counted == close.num_output_tokens == told.tokens[name]
        assert close.puts == close.takes + close.staples + close.left
    assert sum(request.close.staples for request in told.run.requests if request.close) > 0
    long = told.root("crowd 0")
    assert len(long.events) == 150
    assert long.events[0].attributes["index"] == 0


@pytest.mark.parametrize("rule", ["links", "links both ways", "steps and bags"])
def test_5_steps_and_requests_link_to_each_other(told: Recorded, rule: str) -> None:
    checked, failures = rules(told.run)[rule]
    assert checked > 10
    assert failures == []


def test_6_bags_add_up(told: Recorded) -> None:
    checked, failures = rules(told.run)["bags add up"]
    assert checked > 100
    assert failures == []


def test_7_each_abort_is_one_span_with_its_reason_and_was_heard(told: Recorded) -> None:
    spans = told.named("abort engine_core")
    reasons = Counter(span.attributes["vllm_lite.abort.reason"] for span in spans)
    assert reasons == {"stop_string": 1, "client_disconnect": 2, "api": 1}
    assert len(told.named("process engine_core.abort")) == 4
    assert all("vllm_lite.late_outputs" in span.attributes for span in told.named("process engine_core.abort"))


def test_8_a_killed_engine_core(told: Recorded, died: Recorded) -> None:
    assert engine_dead(died.run).failures == []
    assert engine_dead(told.run).failures == ["no engine core was killed", "of the engine core no step is recorded"]


@pytest.mark.parametrize(
    "environ",
    [{"OTEL_TRACES_SAMPLER": "always_off"}, {"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_SAMPLER": "parentbased_always_off"}],
)
def test_9_what_is_not_sampled_leaves_no_file(
    tiny_model_path: Path, tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    async def scene(journeys: Journeys) -> None:
        await journeys.ask("nobody looks", "hello", params(3))

    with pytest.raises(FileNotFoundError):
        play(tiny_model_path, tmp_path / "run", scene)
    assert not list(tmp_path.glob("**/*.vlt"))


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_11_a_run_arrives_as_it_happens(
    tiny_model_path: Path, tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every variable that is said to be honoured, and a collector that turns the first requests away."""
    variables = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-key=secret",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_SERVICE_NAME": "mine",
        "OTEL_RESOURCE_ATTRIBUTES": "team=a",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "VLLM_LITE_TRACE_FLUSH_S": "20",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with receiver(protocol, refuse=2) as received:

        async def scene(journeys: Journeys) -> None:
            await journeys.ask("one", "hello", params(5))

        endpoint = f"http://127.0.0.1:{received.port}"
        run_dir = tmp_path / "run"
        recorded = play(tiny_model_path, run_dir, scene, otlp_traces_endpoint=endpoint, trace_keep=True)
    assert received.span_ids == {span.span_id for span in recorded.spans}
    assert len(received.spans) == len(recorded.spans)
    assert received.service_names == {"mine", "mine.engine-core"}
    assert {attributes(resource.resource)["team"] for resource in received.resources} == {"a"}
    assert {headers["x-key"] for headers in received.headers} == {"secret"}
    if protocol == HTTP:
        assert {headers["content-encoding"] for headers in received.headers} == {"gzip"}
        assert set(received.paths) == {"/v1/traces"}


def test_12_files_that_other_tools_read(told: Recorded, tmp_path: Path) -> None:
    targets = {"otlp": tmp_path / "a.jsonl", "jaeger": tmp_path / "a.json", "perfetto": tmp_path / "p.json"}
    assert set(write_files(told.run.path, targets, {}).values()) == {len(told.spans)}
    parsed = [parse(line) for line in targets["otlp"].read_text().splitlines()]
    assert sum(
        len(scope.spans) for data in parsed for resource in data.resource_spans for scope in resource.scope_spans
    ) == len(told.spans)
    assert isinstance(parsed[0], TracesData)
    assert json_format.MessageToDict(parsed[0])
    for trace in json.loads(targets["jaeger"].read_text())["data"]:
        for span in trace["spans"]:
            assert span["processID"] in trace["processes"]
            assert [reference["refType"] for reference in span["references"]][1:].count("CHILD_OF") == 0
            assert type(span["startTime"]) is type(span["duration"]) is int
    events = Counter(event["ph"] for event in json.loads(targets["perfetto"].read_text())["traceEvents"])
    farewells = sum(request.close.finish_reasons.count("abort") for request in told.run.requests if request.close)
    puts = sum(request.close.puts for request in told.run.requests if request.close)
    assert events["X"] == len(told.spans)
    assert events["s"] == events["f"]
    assert puts - farewells <= events["s"] <= puts


@pytest.mark.parametrize(
    "end", ["return", "raise SystemExit(3)", "os.kill(os.getpid(), signal.SIGTERM)", "os._exit(4)", "1 / 0"]
)
def test_t14_however_a_process_ends_what_it_wrote_is_there(run_dir: Path, end: str) -> None:
    code = f"""
import os, signal, sys
from pathlib import Path
from vllm_lite.tracing.recorder import Recorder
from vllm_lite.tracing.records import Phase
def main():
    recorder = Recorder(Path(sys.argv[1]), "worker", "rank0")
    for number in range(100):
        recorder.append(Phase("p", number, number))
        recorder.flush()
    {end}
main()
"""
    subprocess.run([sys.executable, "-c", code, str(run_dir)], check=False, capture_output=True, env=dict(os.environ))
    assert [record.newest for _, record in RunReader(run_dir).poll()] == list(range(100))


async def seconds_of(engine: AsyncLLM, count: int) -> list[float]:
    """How long each of so many answers took, one after another."""
    took = []
    for number in range(count):
        began = time.monotonic()
        async for _ in engine.generate("hello", params(20), f"r{number}"):
            pass
        took.append(time.monotonic() - began)
    return sorted(took)


async def test_t13_a_black_hole_of_a_collector_delays_nobody(tiny_model_path: Path, tmp_path: Path) -> None:
    """The serving process imports no exporter at all, answers as fast, and ends within the exporter's budget and a second."""
    with socket.create_server(("127.0.0.1", 0)) as hole:
        took = {}
        for name, endpoint in (("without", None), ("with", f"127.0.0.1:{hole.getsockname()[1]}")):
            engine = Journeys(tiny_model_path, tmp_path / name, otlp_traces_endpoint=endpoint).engine
            took[name] = await seconds_of(engine, 40)
            began = time.monotonic()
            engine.shutdown()
            assert time.monotonic() - began < (8.0 if endpoint else 5.0)
    assert took["with"][20] < 2 * took["without"][20] + 0.02
