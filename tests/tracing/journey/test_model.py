from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.tracing import make
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import Ends


@given(st.lists(st.integers()), st.integers(0, 4), st.integers(0, 4))
def test_a_list_may_be_cut_down_to_its_ends(items: list[int], first: int, last: int) -> None:
    ends = Ends(items)
    ends.cut(first, last)
    expected = items if len(items) <= first + last else items[:first] + items[len(items) - last :]
    assert list(ends) == expected
    assert (ends.total, ends.skipped) == (len(items), len(items) - len(expected))
    assert ends.last == (expected[-1] if expected else None)
    ends.append(7)
    assert (ends.total, ends.last) == (len(items) + 1, 7)


def test_a_stay_ends_in_a_step_or_outside_one() -> None:
    front, core = make.front(), make.core()
    begun = [(front, make.accept()), (front, make.post()), (core, make.receive())]
    assert make.request(*begun).stays[0].t_end is None
    finished = make.request(*begun, (core, make.schedule(0, 50, {1: 1})), (core, make.update(0, 60, 70, [(1, "stop")])))
    assert (finished.stays[0].t_end, finished.stays[0].finish_reason) == (70, "stop")
    left = make.request(*begun, (core, rec.Leave(1, 80, "api", "waiting")))
    assert (left.stays[0].t_end, left.stays[0].finish_reason) == (80, None)


def test_steps_of_a_request_with_two_samples_are_each_there_once() -> None:
    front, core = make.front(), make.core()
    request = make.request(
        (front, make.accept()),
        (front, make.post()),
        (front, make.post(sample=1)),
        (core, make.receive(req=1, internal_id="1_0")),
        (core, make.receive(req=2, internal_id="1_1")),
        (core, make.schedule(0, 50, {1: 5, 2: 5})),
        (core, make.schedule(1, 70, {1: 1, 2: 1})),
    )
    assert [step.index for step in request.steps] == [0, 1]
    assert len(request.shares) == 4
    assert [receive.internal_id for receive in request.receives] == ["1_0", "1_1"]
    assert request.steps[0].requests == [request]
