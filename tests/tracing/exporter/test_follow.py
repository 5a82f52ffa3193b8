from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.tracing import make
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.canned import write_canned_run
from vllm_lite.tracing.exporter.follow import PATIENCE_S, SETTLE_S, Follower
from vllm_lite.tracing.journey import RequestJourney, load_run
from vllm_lite.tracing.recorder import Recorder
from vllm_lite.tracing.spans import Span, request_spans, run_spans
from vllm_lite.tracing.spool import SpoolWriter, segments


def polled(follower: Follower, now: float, final: bool = False) -> list[Span]:
    return [span for spans in follower.poll(now, final) for span in spans]


def names(spans: list[Span]) -> Counter[str]:
    return Counter(span.name for span in spans if span.parent_span_id is None)


class Writers:
    """Recorders of a front end and an engine core that write by hand."""

    def __init__(self, run_dir: Path) -> None:
        self.front = Recorder(run_dir, "frontend", "loop")
        self.core = Recorder(run_dir, "engine-core", "main")

    def write(self, recorder: Recorder, *records: rec.Record) -> None:
        for record in records:
            recorder.append(record)
        recorder.flush()

    def close(self) -> None:
        self.front.close()
        self.core.close()


@pytest.fixture
def writers(run_dir: Path) -> Writers:
    return Writers(run_dir)


@pytest.mark.parametrize("engine_dies", [False, True])
def test_at_the_end_everything_is_out_exactly_as_a_later_export_has_it(tmp_path: Path, engine_dies: bool) -> None:
    run_dir = write_canned_run(tmp_path / "run", engine_dies=engine_dies)
    follower = Follower(run_dir)
    spans = polled(follower, 0.0) + polled(follower, SETTLE_S) + polled(follower, SETTLE_S, final=True)
    late = {span.span_id: span for span in run_spans(load_run(run_dir))}
    assert sorted(span.span_id for span in spans) == sorted(late)
    for span in spans:
        other = late[span.span_id]
        assert (span.name, span.start, span.end, span.parent_span_id) == (
            other.name,
            other.start,
            other.end,
            other.parent_span_id,
        )
        assert (span.attributes, span.events, span.error) == (other.attributes, other.events, other.error)
        assert sorted(link.span_id for link in span.links) == sorted(link.span_id for link in other.links)


def test_a_trace_is_out_once_it_is_whole_and_has_settled(tmp_path: Path) -> None:
    follower = Follower(write_canned_run(tmp_path / "run"))
    assert polled(follower, 100.0) == []
    assert polled(follower, 100.0 + SETTLE_S / 2) == []
    spans = polled(follower, 100.0 + SETTLE_S)
    assert names(spans) == {"engine.start": 1, "text_completion canned-model": 3, "engine_core.step": 9}
    assert polled(follower, 200.0, final=True) == []
    assert follower.oldest == follower.polls + 1


def test_an_open_request_waits(writers: Writers, run_dir: Path) -> None:
    follower = Follower(run_dir)
    writers.write(writers.front, make.accept(), make.post())
    writers.write(writers.core, make.receive(), make.schedule(0, 50, {1: 1}))
    for now in (0.0, SETTLE_S, 1000.0):
        assert names(polled(follower, now)) == {}
    assert follower.oldest == 1
    writers.write(writers.core, make.update(0, 60, 70, [(1, "stop")], num_bags=0))
    writers.write(writers.front, make.close())
    assert polled(follower, 2000.0) == []
    assert names(polled(follower, 2000.0 + SETTLE_S)) == {"text_completion m": 1, "engine_core.step": 1}
    writers.close()


def test_a_late_letter_that_comes_soon_after_is_counted(writers: Writers, run_dir: Path) -> None:
    follower = Follower(run_dir)
    writers.write(writers.front, make.accept(), make.post(), make.close())
    writers.write(writers.core, make.receive(), rec.Leave(1, 90, "api", "running"))
    assert polled(follower, 0.0) == []
    writers.write(writers.front, make.sort(0, 95, late=[("1_0", 1)], trace=None))
    root = polled(follower, SETTLE_S)[0]
    assert root.attributes["vllm_lite.late"] == 1
    writers.close()


def test_patience_ends(writers: Writers, run_dir: Path) -> None:
    """A request whose end in the engine core never comes, of an engine core that lives."""
    follower = Follower(run_dir)
    writers.write(writers.front, make.accept(), make.post(), make.close())
    writers.write(writers.core, make.receive(), make.schedule(0, 50, {1: 1}), make.update(0, 60, 70, num_bags=1))
    assert polled(follower, 0.0) == []
    assert polled(follower, PATIENCE_S - 0.1) == []
    spans = polled(follower, PATIENCE_S)
    assert names(spans) == {"text_completion m": 1, "engine_core.step": 1}
    [stay] = [span for span in spans if span.name == "process engine_core.inputs"]
    assert (stay.attributes["vllm_lite.incomplete"], stay.error) == (True, None)
    writers.close()


def test_a_stay_whose_front_end_writes_nothing_goes_once_it_is_over(writers: Writers, run_dir: Path) -> None:
    follower = Follower(run_dir)
    writers.write(writers.core, make.receive(), make.receive(2, internal_id="2_0"))
    assert polled(follower, 0.0) == polled(follower, 1000.0) == []
    writers.write(writers.core, rec.Leave(1, 90, "api", "running"))
    assert polled(follower, 1000.0) == []
    stay, *_ = polled(follower, 1000.0 + PATIENCE_S)
    assert (stay.name, stay.attributes["messaging.message.id"]) == ("process engine_core.inputs", "1_0")
    assert [stay.req for stay in follower.assembler.strays] == [2]
    writers.write(writers.front, make.accept(), make.post(), make.close())  # too late, and no fault
    assert polled(follower, 2000.0) == []
    assert names(polled(follower, 2000.0 + PATIENCE_S)) == {"text_completion m": 1}
    assert follower.failures == []
    writers.close()


def test_a_step_waits_for_all_its_bags(writers: Writers, run_dir: Path) -> None:
    follower = Follower(run_dir)
    writers.write(writers.core, make.schedule(0, 50, {}), make.update(0, 60, 70, num_bags=1))
    writers.write(writers.core, make.work(0, 52, 58), make.send(0, 75))
    assert polled(follower, 0.0) == []
    assert polled(follower, SETTLE_S) == []
    writers.write(writers.front, make.sort(0, 80))
    spans = polled(follower, SETTLE_S + 0.1)
    assert {span.name for span in spans} >= {"engine_core.step", "process engine_core.outputs"}
    writers.close()


@pytest.mark.parametrize("sign", [rec.Phase("engine.start", 0, 5), make.accept(t=5)])
def test_phases_wait_for_the_end_of_the_start_up_and_later_ones_for_no_more(
    writers: Writers, run_dir: Path, sign: rec.Record
) -> None:
    follower = Follower(run_dir)
    writers.write(writers.core, rec.Phase("load", 1, 2))
    assert polled(follower, 0.0) == polled(follower, 100.0) == []
    writers.write(writers.front, sign, rec.Phase("ready", 4, 5))
    assert polled(follower, 101.0) == []
    assert {"load", "ready"} <= {span.name for span in polled(follower, 101.0 + SETTLE_S)}
    writers.write(writers.core, rec.Phase("wake_up", 10, 20))
    assert polled(follower, 105.0) == []
    [later] = polled(follower, 105.0 + SETTLE_S)
    assert (later.name, later.parent_span_id) == ("wake_up", None)
    writers.close()


def test_a_call_waits_for_both_its_halves(writers: Writers, run_dir: Path) -> None:
    follower = Follower(run_dir)
    writers.write(writers.core, make.serve(2, 3, 4), make.serve(2, 3, 4, parent_span_id="9" * 16))
    assert polled(follower, 0.0) == polled(follower, SETTLE_S) == []
    writers.write(writers.front, make.call(1, 5))
    assert [span.kind.name for span in polled(follower, SETTLE_S + 0.1)] == ["CLIENT", "SERVER"]
    assert [span.kind.name for span in polled(follower, PATIENCE_S)] == ["SERVER"]
    writers.close()


def test_t23_a_stream_of_an_hour_costs_no_more_than_one_of_a_minute(writers: Writers, run_dir: Path) -> None:
    follower = Follower(run_dir)
    writers.write(writers.front, make.accept(), make.post())
    writers.write(writers.core, make.receive())

    def hour(first: int, last: int) -> tuple[int, int, int]:
        for step in range(first, last):
            t = 100 * step
            records = make.schedule(step, t, {1: 1}), make.update(step, t + 10, t + 20, num_bags=1), make.work(step, t, t + 5)
            writers.write(writers.core, *records, make.send(step, t + 30))
            writers.write(writers.front, make.sort(step, t + 40, [(1, 1, "p")]), rec.Takes([1], [t + 50]))
        polled(follower, last)
        polled(follower, last + SETTLE_S)
        [request] = follower.assembler.requests.values()
        shares = len(request.stays[0].spells[0].shares)
        return len(request.letters) + len(request.takes), shares, len(follower.assembler.steps) + len(follower.assembler.bags)

    assert hour(0, 1200) == hour(1200, 3000) == (2000, 1000, 0)
    writers.write(writers.front, make.close(t=400_000, num_output_tokens=3000))
    root, *rest = polled(follower, 9000.0, final=True)
    indexes = [event.attributes["index"] for event in root.events]
    assert (indexes, root.dropped_events) == ([*range(500), *range(2500, 3000)], 2000)
    [mailbox] = [span for span in rest if span.name == "mailbox"]
    assert (len(mailbox.events), mailbox.dropped_events) == (2000, 4000)
    writers.close()


def test_a_trace_that_cannot_be_told_stops_no_other(writers: Writers, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(request: RequestJourney) -> list[Span]:
        if request.accept.req == 1:
            raise LookupError("lost")
        return request_spans(request)

    monkeypatch.setattr("vllm_lite.tracing.exporter.follow.request_spans", broken)
    follower = Follower(run_dir)
    writers.write(writers.front, make.accept(1), make.accept(2), make.close(1), make.close(2))
    spans = polled(follower, 0.0) + polled(follower, SETTLE_S)
    assert [span.attributes["vllm_lite.request.id"] for span in spans] == ["r2"]
    assert follower.failures == ["LookupError('lost')"]
    assert polled(follower, 100.0, final=True) == []
    writers.close()


def written_in_parts(run_dir: Path, *parts: tuple[rec.Record, ...]) -> list[Path]:
    """A front end's spool with a segment for each of `parts`, in their order."""
    recorder = Recorder(run_dir, "frontend", "loop", SpoolWriter(run_dir, "frontend", "loop", segment_bytes=1))
    for records in parts:
        for record in records:
            recorder.append(record)
        recorder.flush()
    [paths] = segments(run_dir).values()
    recorder.close()
    return paths[: len(parts)]


def test_a_finished_segment_goes_once_nothing_that_began_in_it_is_open(run_dir: Path) -> None:
    written = written_in_parts(run_dir, (make.accept(1),), (make.accept(2), make.close(2)), (make.close(1),))
    follower = Follower(run_dir)
    polled(follower, 0.0)
    follower.tidy()
    polled(follower, SETTLE_S)
    assert [path.exists() for path in written] == [True, True, True]
    follower.tidy()
    assert [path.exists() for path in written] == [False, False, False]
    assert len(list(run_dir.glob("*.vlt"))) == 1  # the last, which somebody may still write to


def test_a_segment_stays_while_a_request_of_it_is_open(run_dir: Path) -> None:
    written = written_in_parts(run_dir, (make.accept(1),), (make.accept(2), make.close(2)))
    follower = Follower(run_dir)
    assert polled(follower, 0.0) == []
    assert len(polled(follower, SETTLE_S)) == 1
    follower.tidy()
    assert [path.exists() for path in written] == [True, True]


def test_no_segment_goes_unread(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a collector's long absence: segments have piled up, and a poll reads a part of them."""
    monkeypatch.setattr("vllm_lite.tracing.exporter.follow.POLL_BYTES", 1)
    written = written_in_parts(run_dir, *((make.accept(req), make.close(req)) for req in range(1, 5)))
    follower, names = Follower(run_dir), list[object]()
    for now in range(10):
        names += [span.attributes["vllm_lite.request.id"] for span in polled(follower, now)]
        follower.tidy()
    assert names == ["r1", "r2", "r3", "r4"]
    assert [path.exists() for path in written] == [False] * 4
