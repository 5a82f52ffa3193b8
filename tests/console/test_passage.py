from __future__ import annotations

from tests.console.story import BOOT, MS, US, Caller, Teller, short_story
from vllm_lite.console.demo import canned_run
from vllm_lite.console.passage import STOPS, Slot, bags_of, first_token, request_end, request_intervals, slots, time_span
from vllm_lite.tracing.journey.times import ABORT, DECODE, PREFILL, QUEUED, WIRE, WIRE_IN
from vllm_lite.tracing.stations import STATIONS


def test_every_station_is_a_stop_under_its_own_name_and_process() -> None:
    stops = {stop.code: stop for stop in STOPS.values() if stop.code}
    assert list(stops) == list(STATIONS)
    assert all((s.name, s.process) == (STATIONS[c].name, STATIONS[c].process) for c, s in stops.items())
    rest = [(stop.name, stop.process) for stop in STOPS.values() if not stop.code]
    assert rest == [
        *(("wire", "wire"), ("queued", "engine-core"), ("prefill", "engine-core"), ("decode", "engine-core")),
        *(("wire", "wire"), ("abort", "frontend")),
    ]


def test_a_mailbox_holds_a_letter_and_what_is_stapled_to_it() -> None:
    filled = slots(short_story().requests[1])
    assert [slot.letters for slot in filled] == [1, 2, 3, 2]
    assert all(slot.t_take is not None and slot.t_take >= slot.t_put for slot in filled)


def test_a_letter_that_was_never_taken_has_no_end() -> None:
    request = short_story().requests[0]
    del request.t_takes[2:]
    assert isinstance(slots(request)[2], Slot)
    assert [slot.t_take is None for slot in slots(request)] == [False, False] + [True] * 7


def test_a_requests_stops_in_the_order_it_meets_them() -> None:
    request = short_story().requests[0]
    found = request_intervals(request)
    assert list(found) == list(STOPS)
    lengths = {key: sum(t1 - t0 for t0, t1 in found[key]) for key in ("S1", "S2", "S3", WIRE_IN, "S4")}
    assert lengths == {"S1": 60 * US, "S2": 840 * US, "S3": 110 * US, WIRE_IN: 90 * US, "S4": 90 * US}
    assert [len(found[key]) for key in (QUEUED, PREFILL, DECODE, "S5", "S6", "S7", WIRE, "S8", "S9", ABORT)] == [
        *(1, 1, 1, 9, 9, 9, 9, 9, 9, 0),
    ]
    assert found[QUEUED][0][1] == found[PREFILL][0][0]
    assert found[PREFILL][0][1] == found[DECODE][0][0]
    assert found["S1"][0][0] == BOOT


def test_a_stop_string_is_an_abort_until_the_core_hears_it() -> None:
    found = request_intervals(short_story().requests[2])
    assert [t1 - t0 for t0, t1 in found[ABORT]] == [140 * US]
    assert len(found["S6"]) == 6  # one step too many, whose letter came late
    assert len(found["S8"]) == 6


def test_a_preempted_request_queues_and_prefills_twice() -> None:
    cleo = canned_run().requests[2]
    found = request_intervals(cleo)
    assert [len(found[key]) for key in (QUEUED, PREFILL, DECODE)] == [2, 2, 2]


def test_without_single_letters_the_bags_of_its_steps_count() -> None:
    request = short_story(level=1).requests[0]
    assert len(bags_of(request)) == 9
    assert slots(request) == []


def test_a_request_that_never_closed_ends_where_its_front_end_was_last_seen() -> None:
    run = short_story()
    request = run.requests[0]
    request.close = None
    assert request_end(request) == request.process.t_last
    assert first_token(request) is None


def test_time_span_is_from_the_first_accept_to_the_last_close() -> None:
    run = short_story()
    assert time_span(run) == (BOOT, max(request_end(request) for request in run.requests))
    run.requests.clear()
    assert time_span(run) == (0, 0)


def test_first_token_counts_from_accept() -> None:
    run = Teller([Caller(12, 2, 3 * MS)]).tell()
    close = run.requests[0].close
    assert close is not None
    assert close.t_first_token is not None
    assert first_token(run.requests[0]) == close.t_first_token - BOOT - 3 * MS
