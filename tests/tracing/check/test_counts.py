from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.tracing import make
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.check import ClientLine, Finding, judge
from vllm_lite.tracing.check import counts as rules
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.process import Process


class Judged:
    """Each rule of the module, with its verdict."""

    def __getattr__(self, name: str) -> Callable[..., Finding]:
        return lambda *args, **options: judge(name, getattr(rules, name)(*args, **options))


counts = Judged()


def front() -> Process:
    return make.front(threads={"loop": True})


def of(*records: rec.Record, process: Process | None = None, **accepted: Any) -> Run:
    """A run whose front end wrote an Accept and then these."""
    process = process or front()
    return make.run((process, make.accept(**accepted)), *((process, record) for record in records))


def answered(**fields: Any) -> list[rec.Record]:
    """Two tokens put, the second stapled, taken together."""
    close = {"puts": 2, "staples": 1, "takes": 1, "num_output_tokens": 2} | fields
    return [
        make.sort(0, 10, [(1, 1, "p")]),
        make.sort(1, 20, [(1, 1, "s")]),
        rec.Takes([1], [30]),
        make.close(**close),
    ]


def line(**fields: Any) -> ClientLine:
    defaults = {
        "request_id": "r1",
        "token_ids": [5, 6],
        "takes": 1,
        "finish_reason": "length",
        "traceparent": None,
        "kind": "finished",
    }
    return defaults | fields


def test_one_end() -> None:
    assert counts.one_close(of(make.close())).ok
    assert counts.one_close(of()).failures == ["request r1 ended 0 times"]
    assert counts.one_close(of(make.close(), make.close())).failures == ["request r1 ended 2 times"]
    assert counts.one_close(of(process=make.front(threads={"loop": False}))).ok


def test_letters() -> None:
    assert counts.letters(of(*answered())).ok


def test_the_letter_that_tells_of_an_abort_comes_from_no_bag() -> None:
    aborted = {"outcome": "aborted", "finish_reasons": ["abort"], "puts": 3}
    put, stapled = rec.Farewell(1, 25, rec.PUT), rec.Farewell(1, 25, rec.STAPLED)
    assert counts.letters(of(put, *answered(**aborted, left=1))).ok
    assert counts.letters(of(stapled, *answered(**aborted, staples=2))).ok
    assert counts.letters(of(*answered(**aborted, left=1))).failures == ["request r1 puts: close=3, letters=2"]


@pytest.mark.parametrize(
    ("wrong", "failures"),
    [
        ({"left": 1}, ["request r1: puts=2, takes_staples_left=3"]),
        ({"puts": 3, "left": 1}, ["request r1 puts: close=3, letters=2"]),
        ({"staples": 0, "left": 1}, ["request r1 staples: close=0, letters=1"]),
        ({"takes": 2, "puts": 3}, ["request r1 puts: close=3, letters=2", "request r1 takes: close=2, taken=1"]),
        ({"kept_back": 1}, ["request r1 kept back: close=1, letters=0"]),
    ],
)
def test_letters_that_do_not_add_up(wrong: dict[str, int], failures: list[str]) -> None:
    assert counts.letters(of(*answered(**wrong))).failures == failures


def test_letters_at_level_1_are_only_counted() -> None:
    run = of(make.close(puts=2, staples=1, takes=1), level=1)
    assert counts.letters(run).ok
    assert counts.letters(run).checked == 1


def test_where_the_level_was_lowered_letters_may_be_missing() -> None:
    lowered = [record for record in answered(level=1) if not isinstance(record, rec.Sort)]
    assert counts.letters(of(*lowered)).ok
    assert counts.tokens(of(*lowered), [line()]).ok


def test_tokens() -> None:
    assert counts.tokens(of(*answered()), None).ok
    assert counts.tokens(of(*answered(num_output_tokens=3)), None).failures == [
        "request r1 tokens: usage=3, letters=2, taken=2"
    ]


def test_tokens_against_the_caller() -> None:
    assert counts.tokens(of(*answered()), [line()]).ok


@pytest.mark.parametrize(
    ("wrong", "failure"),
    [
        ({"takes": 2}, "request r1 takes: caller=2, close=1"),
        ({"token_ids": [5]}, "request r1 taken: caller=1, takes=2"),
        ({"finish_reason": "stop"}, "request r1 finish: caller=['stop'], close=['length']"),
        ({"traceparent": f"00-{'f' * 32}-{'e' * 16}-01"}, f"request r1 trace: caller={'f' * 32}, accept={make.TRACE}"),
        ({"request_id": "r2"}, "r2: its caller knows it, the spools do not know how it ended"),
    ],
)
def test_a_caller_who_saw_something_else(wrong: dict[str, Any], failure: str) -> None:
    assert failure in counts.tokens(of(*answered()), [line(**wrong)]).failures


def test_what_was_left_in_the_slot_counts_with_what_was_taken() -> None:
    def left(tokens: int) -> Run:
        *letters, end = answered(puts=3, left=1, num_output_tokens=5, left_tokens=tokens)
        return of(*letters, make.sort(2, 35, [(1, 3, "p")]), end)

    caller = line(finish_reason=None)
    assert counts.tokens(left(3), [caller]).ok
    assert counts.tokens(left(2), [caller]).failures == [
        "request r1 tokens: usage=5, letters=5, taken_and_left=4",
        "request r1 usage: caller_and_left=4, close=5",
    ]
    assert counts.tokens(left(-1), [caller]).ok  # nobody looked: the engine was shut down
    assert counts.tokens(left(-1), [line(takes=2)]).ok
    assert counts.tokens(left(-1), [line(takes=3)]).failures == ["request r1 takes: caller=3, close=1, left=1"]


def test_a_request_that_no_caller_made() -> None:
    assert counts.tokens(of(*answered()), []).failures == ["r1: the spools know it, no caller does"]


@pytest.mark.parametrize(("sampler", "ok"), [(None, False), ("parentbased_always_on", False), ("traceidratio", True)])
def test_a_caller_may_be_missing_where_the_sampler_takes_some_only(sampler: str | None, ok: bool) -> None:
    assert counts.tokens(make.run(), [line(sampler=sampler)]).ok is ok


def test_an_unsampled_caller_is_not_in_the_spools() -> None:
    client = [line(), line(request_id="r2", traceparent=f"00-{'f' * 32}-{'e' * 16}-00")]
    assert counts.tokens(of(*answered()), client).ok


def test_the_tokens_of_an_aborted_request_are_those_that_were_taken() -> None:
    run = of(*answered(outcome="aborted", num_output_tokens=9))
    assert counts.tokens(run, [line(kind="aborted", finish_reason=None)]).ok
    assert not counts.tokens(run, [line(kind="aborted", token_ids=[1])]).ok


def test_bags() -> None:
    assert counts.bags(of(*answered())).ok


@pytest.mark.parametrize(
    ("wrong", "failure"),
    [
        ({"slices": [(12, 14, 1)]}, "bag 0 letters: bag=2, slices=1, fates=2"),
        ({"num_put": 1}, "bag 0 letters: bag=2, slices=2, fates=1"),
        ({"fates": "ps"}, "bag 0 fates: columns=(1, 1, 0), counts=(2, 0, 0)"),
        (
            {"num_outputs": 3, "slices": [(12, 14, 3)], "num_kept_back": 1},
            "bag 0 outputs and bytes: sent=(2, 50), sorted=(3, 50)",
        ),
    ],
)
def test_a_bag_that_does_not_add_up(wrong: dict[str, Any], failure: str) -> None:
    process, core = front(), make.core()
    run = make.run(
        (process, make.accept()),
        (core, make.schedule(0, 5, {})),
        (core, make.send(0, 8, num_outputs=2)),
        (process, make.sort(0, 10, [(1, 1, "p"), (1, 1, "p")], **wrong)),
    )
    assert failure in counts.bags(run).failures


def test_a_slice_that_is_too_long() -> None:
    run = of(make.sort(0, 10, [(0, 1, "p")] * 129))
    assert counts.bags(run).failures == ["bag 0 has a slice of 129"]
    assert counts.bags(run, max_slice=129).ok


def test_a_letter_for_a_request_that_was_not_in_the_step() -> None:
    process, core = front(), make.core()
    begun = [(process, make.accept()), (process, make.post()), (core, make.receive())]
    rest = [(core, make.send(0, 55)), (process, make.sort(0, 60, [(1, 1, "p")]))]
    assert counts.steps(make.run(*begun, (core, make.schedule(0, 50, {1: 1})), *rest)).ok
    finding = counts.steps(make.run(*begun, (core, make.schedule(0, 50, {})), *rest))
    assert finding.failures == ["bag 0: 1 letters for requests that were not in its step"]
    let_in_while_off = (process, make.close(level=0))
    assert counts.steps(make.run(*begun, (core, make.schedule(0, 50, {})), *rest, let_in_while_off)).ok


def test_only_a_killed_engine_core_may_leave_a_bag_without_its_step() -> None:
    process = front()
    bag = (process, make.sort(0, 60))
    assert not counts.steps(make.run(bag)).ok
    assert counts.steps(make.run(bag, (make.core(), make.receive()))).ok
    assert not counts.steps(make.run(bag, (process, make.sort(1, 70)), (make.core(), make.receive()))).ok


def test_aborts() -> None:
    process, core = front(), make.core(threads={"main": True})
    sent, received = (process, make.abort()), (core, make.receive_abort())
    begun = [(process, make.accept()), (process, make.post()), (core, make.receive())]
    end = (process, make.close(outcome="aborted"))
    assert counts.aborts(make.run(*begun, sent, received, end)).ok
    assert counts.aborts(make.run(*begun, end)).failures == ["request r1 ended as aborted, but nobody gave it up"]
    assert counts.aborts(make.run(*begun, (core, rec.Leave(1, 90, "api", "running")), end)).ok
    assert counts.aborts(make.run(*begun, sent, end)).failures == ["request r1: 1 aborts did not reach the engine core"]
    assert counts.aborts(make.run(*begun, sent, sent, received, end)).failures == ["request r1 was aborted more than once"]


def test_an_abort_need_not_reach_an_engine_core_that_died() -> None:
    process = front()
    begun = [(process, make.accept()), (process, make.post()), (make.core(), make.receive())]
    assert counts.aborts(make.run(*begun, (process, make.abort()), (process, make.close(outcome="aborted")))).ok


def test_a_stop_string_is_no_failure() -> None:
    process, core = front(), make.core(threads={"main": True})
    begun = [(process, make.accept()), (process, make.post()), (core, make.receive())]
    stopped = [(process, make.abort(reason="stop_string")), (core, make.receive_abort(reason="stop_string"))]
    assert counts.aborts(make.run(*begun, *stopped, (process, make.close()))).ok
    assert not counts.aborts(make.run(*begun, *stopped, (process, make.close(outcome="aborted")))).ok


def whole(**wrong: Any) -> list[tuple[Process, rec.Record]]:
    """One request and its one step, from end to end, each record by its name; those in `wrong` replace or drop theirs."""
    process, core, worker = front(), make.core(threads={"main": True}), make.worker(threads={"rank0": True})
    told: dict[str, tuple[Process, Any]] = {
        "accept": (process, make.accept()),
        "tokenise": (process, rec.Tokenise(1, 2, 3, 4)),
        "post": (process, make.post()),
        "receive": (core, make.receive()),
        "schedule": (core, make.schedule(0, 50, {1: 4})),
        "execute": (core, make.execute(0, 52, 56)),
        "work": (worker, make.work(0, 53, 55)),
        "update": (core, make.update(0, 56, 57, [(1, "length")], num_bags=1)),
        "send": (core, make.send(0, 58)),
        "sort": (process, make.sort(0, 60, [(1, 1, "p")])),
        "close": (process, make.close(num_prompt_tokens=4)),
    }
    told |= {name: (told[name][0], record) for name, record in wrong.items()}
    return [pair for pair in told.values() if pair[1] is not None]


def test_a_way_that_is_whole() -> None:
    assert counts.nothing_lost(make.run(*whole())).ok
    assert counts.steps(make.run(*whole())).ok


def test_of_a_run_that_is_still_written_the_newest_may_not_be_read_yet() -> None:
    process, core = make.front(threads={"loop": False}, alive=True), make.core(threads={"main": False}, alive=True)
    known = {front().role: process, core.role: core}
    for lost in ("receive", "schedule", "update", "send"):
        pairs = [(known[writer.role], record) for writer, record in whole(**{lost: None}) if writer.role in known]
        run = make.run(*pairs)
        assert counts.nothing_lost(run).ok
        assert counts.steps(run).ok


@pytest.mark.parametrize(
    ("lost", "failure"),
    [
        ("tokenise", "request r1 prompt: close=4, tokenised=0"),
        ("post", "request r1 on its way in: posted=1, received=0"),
        ("receive", "request r1 on its way in: posted=1, received=0"),
        ("update", "request r1: 1 of its stays in the engine core have no end"),
    ],
)
def test_a_record_that_is_missing_on_a_requests_way(lost: str, failure: str) -> None:
    assert counts.nothing_lost(make.run(*whole(**{lost: None}))).failures == [failure]


@pytest.mark.parametrize("wrong", [{"execute": None}, {"update": None}, {"update": make.update(0, 56, 57, num_bags=2)}])
def test_a_record_that_is_missing_of_a_step(wrong: dict[str, Any]) -> None:
    failure = "step 0: a record of how it was run, taken over or sent is missing"
    assert counts.steps(make.run(*whole(**wrong))).failures == [failure]


def test_each_step_was_run_by_as_many_workers() -> None:
    second = {
        "schedule": make.schedule(1, 70, {1: 1}),
        "execute": make.execute(1, 72, 76),
        "update": make.update(1, 76, 77, num_bags=1),
        "send": make.send(1, 78),
        "sort": make.sort(1, 80, [(1, 1, "p")]),
        "work": None,
    }
    first = whole()
    steps = [pair for pair in whole(**second) if type(pair[1]) in (rec.Schedule, rec.Execute, rec.Update, rec.Send, rec.Sort)]
    by_role = {process.role: process for process, _ in first}
    run = make.run(*first, *((by_role[process.role], record) for process, record in steps))
    assert counts.steps(run).failures == ["step 1: a record of how it was run, taken over or sent is missing"]


def test_a_bag_that_is_missing_in_a_front_ends_count() -> None:
    run = of(make.sort(0, 10), make.sort(2, 20))
    assert counts.bags(run).failures == ["front end 1 bags: recorded=2, counted=3"]


def test_nothing_lost() -> None:
    run = make.run(*whole())
    assert counts.nothing_lost(run).ok
    run.torn, run.unknown, run.unclaimed = 1, 2, 3
    run.dropped.append((front(), rec.Dropped(4, "no room")))
    assert counts.nothing_lost(run).failures == [
        "1 spools end in the middle of a frame, 0 without a farewell",
        "2 records are of a newer version",
        "3 records belong to nothing",
        "4 dropped: no room",
    ]


def test_a_torn_frame_belongs_to_a_process_that_was_killed(dead: Run) -> None:
    assert dead.torn == 1
    assert counts.nothing_lost(dead).ok


@pytest.mark.parametrize(("steps", "died", "ok"), [(2, True, True), (3, True, False), (1, False, False)])
def test_a_killed_core_takes_the_steps_in_flight_along(steps: int, died: bool, ok: bool) -> None:
    core, worker = make.core(threads={"main": not died}), make.worker(threads={"rank0": True})
    works = [(worker, make.work(step, 10, 20)) for step in range(1, 1 + steps)]
    assert counts.nothing_lost(make.run((core, make.schedule(0, 0, {1: 1})), *works)).ok is ok


def test_a_front_end_that_was_killed_took_its_callers_with_it() -> None:
    killed = make.front(threads={"loop": False})
    assert counts.tokens(of(*answered(), process=killed), []).ok
