"""The choice of an engine core."""

from __future__ import annotations

import pytest

from tests.frontend.helpers import row
from vllm_lite.frontend.core_client.load_balancer import LoadBalancer
from vllm_lite.wire.messages import EngineCoreOutputs, FinishReason
from vllm_lite.wire.stats import SchedulerStats


def say(balancer: LoadBalancer, index: int, *, waiting: int = 0, running: int = 0, usage: float = 0.0) -> None:
    balancer.observe(EngineCoreOutputs(index, scheduler_stats=SchedulerStats(running, waiting, usage)))


def test_equal_loads_take_turns() -> None:
    balancer = LoadBalancer(3)
    assert [balancer.choose(f"r{i}") for i in range(6)] == [0, 1, 2, 0, 1, 2]


def test_x7_a_burst_is_spread_although_what_was_said_is_stale() -> None:
    balancer = LoadBalancer(3)
    chosen = []
    for i in range(6):
        chosen.append(balancer.choose(f"r{i}"))
        for index in range(3):
            say(balancer, index)  # nothing has arrived there yet
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_of_several_front_ends_each_begins_elsewhere_and_takes_the_others_to_send_as_much() -> None:
    balancers = [LoadBalancer(4, 2, index) for index in range(2)]
    assert [balancer.choose("r") for balancer in balancers] == [0, 2]
    say(balancers[0], 0)
    for index in (1, 2, 3):
        say(balancers[0], index, running=1)
    assert balancers[0].choose("s") == 1  # one sent to 0 here, so two in all
    say(balancers[0], 0, running=9)  # what was sent elsewhere
    assert balancers[0].choose("t") == 2


@pytest.mark.parametrize(("usage", "expected"), [(0.9, 1), (0.5, 0)])
def test_waiting_weighs_more_where_the_cache_is_full(usage: float, expected: int) -> None:
    balancer = LoadBalancer(2)
    say(balancer, 0, waiting=2, running=8, usage=usage)
    say(balancer, 1, running=12)
    assert balancer.choose("r") == expected


def test_a_rank_that_was_asked_for_and_one_that_has_the_request() -> None:
    balancer = LoadBalancer(3)
    assert balancer.choose("r", 2) == 2
    assert balancer.choose("r") == 2  # as a further piece of the same request
    assert balancer.reqs_in_flight == {"r": 2}


def test_an_end_frees_its_place_once() -> None:
    balancer = LoadBalancer(2)
    for name in "abc":
        balancer.choose(name)
    part = row("c", [1], finish_reason=FinishReason.STOP)  # of a session, which stays where it is
    balancer.observe(EngineCoreOutputs(0, [part, row("gone", [])], finished_requests={"a", "gone"}))
    assert balancer.reqs_in_flight == {"b": 1, "c": 0}
    assert balancer.by_engine(["b", "c", "a", "unknown"]) == {1: ["b"], 0: ["c"]}
    assert balancer.forget("b") is None
    assert [load.in_flight for load in balancer._loads] == [0, 0]


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
def test_an_end_outside_a_step_has_only_its_row(reason: FinishReason) -> None:
    balancer = LoadBalancer(1)
    balancer.choose("a")
    balancer.observe(EngineCoreOutputs(0, [row("a", [], finish_reason=reason)]))
    assert balancer.reqs_in_flight == {}
