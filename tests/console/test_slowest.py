from __future__ import annotations

from tests.console.screens import Golden, lines
from tests.console.story import MS, US, Caller, Teller, crowd, short_story
from tests.tracing import make
from vllm_lite.console.demo import canned_run
from vllm_lite.console.slowest import PARTS, Slowest, time_parts
from vllm_lite.tracing.journey import Run


def test_golden(golden: Golden) -> None:
    golden("slowest", Slowest(canned_run(), 3))
    golden("slowest-crowd", Slowest(crowd(), 5))
    golden("slowest-dead", Slowest(canned_run(engine_dies=True), 2))


def test_the_slowest_come_first_and_keep_their_letters() -> None:
    assert [number for number, _ in Slowest(canned_run(), 2).shown] == [2, 0]
    assert [number for number, _ in Slowest(canned_run(), 99).shown] == [2, 0, 1]


def test_a_request_s_parts_make_up_its_whole_time() -> None:
    for run in (crowd(), canned_run(), canned_run(engine_dies=True)):
        for request in run.requests:
            parts = time_parts(request)
            end = request.close.t if request.close else request.process.t_last
            assert set(parts) <= set(PARTS)
            assert parts.total() == end - request.accept.t
            assert min(parts.values()) >= 0


def test_what_is_most_above_the_mean_is_named() -> None:
    run = Teller([Caller(answer=5), Caller(answer=5), Caller(answer=200)]).tell()
    assert lines(Slowest(run, 2))[-2:] == [
        "C    decode 2.06 s above the mean",
        "A    decode took longest, as in the mean",
    ]


def test_a_caller_that_took_its_time_is_named() -> None:
    run = Teller([Caller(answer=5), Caller(answer=5, slow=900 * MS)]).tell()
    assert lines(Slowest(run, 2))[-2:] == [
        "B    way out 418.4 ms above the mean; letters waited 884.6 ms for their caller",
        "A    decode took longest, as in the mean",
    ]


def test_of_several_answers_the_last_one_counts() -> None:
    front, core = make.front(), make.core()
    request = make.request(
        (front, make.accept(t=0)),
        (front, make.post(t0=5, t1=10)),
        (front, make.post(t0=12, t1=15, sample=1, internal_id="1_1")),
        (core, make.receive(t0=30, t1=40)),
        (core, make.receive(2, t0=32, t1=42, internal_id="1_1")),
        (core, make.schedule(0, 50, {1: 1, 2: 1}, prefills=[1, 2])),
        (core, make.update(0, 60, 70, [(1, "stop")])),
        (core, make.schedule(1, 80, {2: 1})),
        (core, make.update(1, 90, 100, [(2, "stop")])),
        (front, make.close(t=130)),
    )
    assert time_parts(request) == {
        "way in": 15,
        "wire in": 17,
        "S4": 10,
        "queued": 8,
        "prefill": 20,
        "decode": 30,
        "way out": 30,
    }


def test_an_engine_core_may_be_quicker_than_the_posts_own_stamp() -> None:
    front, core = make.front(), make.core()
    request = make.request(
        (front, make.accept(t=0)),
        (front, make.post(t0=5, t1=60)),
        (core, make.receive(t0=30, t1=40)),
        (core, make.schedule(0, 50, {1: 1}, prefills=[1])),
        (core, make.update(0, 60, 70, [(1, "stop")])),
        (front, make.close(t=75)),
    )
    expected = {"way in": 30, "S4": 10, "queued": 10, "prefill": 20, "way out": 5}
    assert +time_parts(request) == expected


def test_one_that_never_reached_an_engine_core_was_on_its_way_out_all_the_time() -> None:
    front = make.front()
    request = make.request((front, make.accept(t=0)), (front, make.close(t=50, outcome="invalid")))
    assert +time_parts(request) == {"way out": 50}


def test_the_mean_is_that_of_all_requests() -> None:
    run = short_story()
    mean = lines(Slowest(run, 1))[-2].split()
    parts = [time_parts(request) for request in run.requests]
    assert mean[0] == "mean"
    assert mean[2] == f"{sum(part['way in'] for part in parts) / 3 / (1000 * US):.2f}"


def test_nothing_to_show() -> None:
    assert lines(Slowest(Run(canned_run().path), 3))[1:] == ["No request was traced in this run."]
