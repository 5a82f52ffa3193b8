from __future__ import annotations

from tests.console.screens import Golden, lines
from tests.console.story import MS, US, Caller, Teller, crowd, short_story
from tests.tracing import make
from vllm_lite.console.demo import canned_run
from vllm_lite.console.passage import STOPS
from vllm_lite.console.totals import Totals
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey.model import UtilityCall
from vllm_lite.tracing.journey.times import WIRE, station_times
from vllm_lite.tracing.stations import STATIONS


def test_golden(golden: Golden) -> None:
    golden("totals", Totals(short_story()))
    golden("totals-crowd", Totals(crowd()))
    golden("totals-dead", Totals(canned_run(engine_dies=True)))


def test_the_sentences() -> None:
    text = lines(Totals(short_story()))
    assert text[1:10] == [
        "requests     3: 2 length, 1 stop",
        "tokens       49 in prompts (16 cached), 22 in answers, 134.5 a second",
        "first letter 34.6 ms after accept (p50), 36.6 ms (p99)",
        "steps        9, 1 with prompts; 2.6 requests in a step on the mean, 3 at most",
        "KV cache     3.3% used at most; 0 preemptions",
        "bags         9 with 23 letters, 1.3 KiB",
        "letters      18 into an empty mailbox, 4 stapled to one not taken yet, 1 late (its request was over)",
        "mailboxes    22 puts = 18 takes + 4 staples",
        "aborts       1: 1 stop string found",
    ]


def test_mailboxes_that_do_not_add_up_are_told() -> None:
    run = short_story()
    close = run.requests[0].close
    assert close is not None
    close.takes -= 1
    assert "mailboxes    22 puts = 17 takes + 4 staples does not add up" in lines(Totals(run))


def test_gap_15_calls_are_one_line() -> None:
    run = short_story()
    front, error = run.processes[0], ("RuntimeError", "no room")
    calls = [make.call(1, 2), make.call(3, 4, method="wake_up", error=error), make.call(5, 6, method="wake_up")]
    run.calls = [UtilityCall((front, call)) for call in calls] + [UtilityCall(None, (front, make.serve(1, 2, 3)))]
    assert lines(Totals(run), 120)[10] == (
        "calls        4 utility calls (methods of the engine core, no requests): 2 sleep, 2 wake_up; failed: 1 wake_up:"
    )


def test_what_was_not_recorded_is_told() -> None:
    run = short_story()
    run.dropped = [(run.processes[0], rec.Dropped(7, "disk full"))]
    run.torn, run.unclaimed, run.unknown = 1, 2, 3
    told = "7 records dropped (disk full); 1 spool cut short in its last frame; 2 records whose beginning is lost; 3 records"
    assert any(line.startswith(f"not recorded {told}") for line in lines(Totals(run), 150))


def test_a_sentence_that_is_too_long_goes_on_in_the_next_line() -> None:
    assert lines(Totals(short_story()), 60)[5:11] == [
        "steps        9, 1 with prompts; 2.6 requests in a step on",
        "             the mean, 3 at most",
        "KV cache     3.3% used at most; 0 preemptions",
        "bags         9 with 23 letters, 1.3 KiB",
        "letters      18 into an empty mailbox, 4 stapled to one not",
        "             taken yet, 1 late (its request was over)",
    ]


def test_each_station_with_its_figures() -> None:
    found = station_times(Teller([Caller(answer=2)]).tell())
    assert list(found) == list(STOPS)
    assert found["S5"] == [129 * US, 129 * US]
    assert found[WIRE] == [100 * US, 100 * US]
    assert found["S9"] == [45 * US, 45 * US]
    assert len(found["S6"]) == 2
    assert all(15 * MS < value < 20 * MS for value in found["S6"])


def test_the_table_says_what_happens_where_there_is_room() -> None:
    text = "\n".join(lines(Totals(short_story()), 120))
    assert all(station.meaning in text for station in STATIONS.values())
    assert STATIONS["S5"].meaning not in "\n".join(lines(Totals(short_story()), 80))


def test_steps_that_are_shared_count_once() -> None:
    run = short_story()
    assert len(station_times(run)["S6"]) == len(run.steps) == 9


def test_an_empty_run() -> None:
    run = short_story()
    run.requests.clear()
    run.steps.clear()
    run.bags.clear()
    assert lines(Totals(run))[1] == "requests     0:"
