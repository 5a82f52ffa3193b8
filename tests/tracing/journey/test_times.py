from __future__ import annotations

from dataclasses import replace

from tests.tracing import make
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.journey.times import STOPS, WIRE, bag_visits, station_times, step_visits


def test_every_stop_of_one_request() -> None:
    front, core, worker = make.front(), make.core(), make.worker()
    run = make.run(
        (front, make.accept(t=0)),
        (front, rec.Tokenise(1, 3, 8, 5)),
        (front, make.post(t0=10, t1=20)),
        (core, make.receive(t0=30, t1=40)),
        (core, make.schedule(0, 50, {1: 5}, prefills=[1])),
        (core, make.execute(0, 53, 63)),
        (worker, make.work(0, 54, 62)),
        (core, make.update(0, 64, 70)),
        (core, make.send(0, 75)),
        (front, make.sort(0, 80, [(1, 1, "p")])),
        (front, rec.Takes([1], [90])),
        (core, make.schedule(1, 100, {1: 1})),
        (core, make.update(1, 110, 120, [(1, "length")])),
        (front, make.abort(t=130)),
        (core, make.receive_abort(t=137)),
        (front, make.close()),
    )
    assert station_times(run) == {
        "S1": [3],
        "S2": [5],
        "S3": [12],
        "wire in": [10],
        "S4": [10],
        "queued": [10],
        "prefill": [20],
        "decode": [50],
        "S5": [2, 2],
        "S6": [10],
        "S7": [12],
        "wire": [4],
        "S8": [5],
        "S9": [6],
        "abort": [7],
    }


def test_what_was_never_reached_has_no_visits() -> None:
    front = make.front()
    times = station_times(make.run((front, make.accept()), (front, make.close(outcome="invalid"))))
    assert times == {stop: [] for stop in STOPS}


def test_a_letter_that_was_never_taken_lay_there_until_the_end() -> None:
    front = make.front()
    run = make.run(
        (front, make.accept()),
        (front, make.sort(0, 10, [(1, 1, "p")])),
        (front, rec.Takes([1], [17])),
        (front, make.sort(1, 20, [(1, 1, "p")])),
        (front, make.close(t=100, puts=2, takes=1, left=1)),
    )
    assert station_times(run)["S9"] == [3, 75]


def test_one_that_is_still_under_way_counts_until_its_process_was_last_seen() -> None:
    front, core = make.front(), make.core()
    run = make.run(
        (front, make.accept()),
        (front, make.post()),
        (core, make.receive()),
        (core, make.schedule(0, 50, {}, preempted=[1])),
        (core, make.update(0, 60, 90)),
    )
    assert station_times(run)["queued"] == [10, 40]


def test_preempted_requests_queue_and_compute_again(canned: Run) -> None:
    times = station_times(canned)
    assert [len(times[stop]) for stop in ("queued", "prefill", "decode", "S5", "S8", "S9")] == [4, 4, 4, 9, 9, 13]


def test_a_bags_way_has_no_gap_between_its_encoding_and_the_clerk(canned: Run) -> None:
    bag = canned.bags[0]
    assert bag.step is not None
    (_, s6) = step_visits(bag.step)
    (s7, wire, s8) = bag_visits(bag)
    assert (s6[0], s7[0], wire[0], s8[0]) == ("S6", "S7", WIRE, "S8")
    assert s6[2] <= s7[1]
    assert s7[2] == wire[1]
    assert wire[2] == s8[1]


def test_a_bag_without_its_step_has_only_the_clerks_time(canned: Run) -> None:
    bag = replace(canned.bags[0], step=None)
    assert [stop for stop, _, _ in bag_visits(bag)] == ["S8"]
