from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.tracing import make
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.journey.model import Column, Ends


@given(st.lists(st.integers()), st.integers(0, 4), st.integers(0, 4))
def test_a_list_may_be_cut_down_to_its_ends(items: list[int], first: int, last: int) -> None:
    ends = Ends(items)
    ends.cut(first, last)
    expected = items if len(items) <= first + last else items[:first] + items[len(items) - last :]
    assert list(ends) == expected
    assert (ends.total, ends.skipped) == (len(items), len(items) - len(expected))
    ends.append(7)
    assert ends.total == len(items) + 1


@given(st.lists(st.integers(0, 9), max_size=9), st.integers(0, 3), st.integers(0, 3))
def test_a_column_is_a_sequence_of_what_it_makes(places: list[int], first: int, last: int) -> None:
    column = Column[str](lambda source, place: f"{source}{place}")
    for place in places:
        column.sources.append("s")
        column.places.append(place)
    expected = [f"s{place}" for place in places]
    assert (list(column), len(column), [column[i] for i in range(len(column))]) == (expected, len(expected), expected)
    column.cut(first, last)
    kept = expected if len(expected) <= first + last else expected[:first] + expected[len(expected) - last :]
    assert (list(column), column.total, column.skipped) == (kept, len(expected), len(expected) - len(kept))


def test_letters_are_made_once() -> None:
    front = make.front()
    request = make.request((front, make.accept()), (front, make.sort(0, 10, [(1, 1, "p")])))
    assert request.letters[0] is request.letters[0].bag.letters[0]


def test_a_letter_is_found_by_where_it_lay() -> None:
    """With two answers to one prompt, a bag holds two letters of one request."""
    front = make.front()
    bags = [(front, make.sort(number, 10 * number, [(1, 1, "p"), (2, 1, "p"), (1, 1, "s")])) for number in range(3)]
    request = make.request((front, make.accept()), *bags)
    found = [
        request.letter_index(bag, place) for bag, place in zip(request.letters.sources, request.letters.places, strict=True)
    ]
    assert found == list(range(6))
    assert request.fates == "pspsps"
    middle = request.letters.sources[2]
    request.cut(1)
    assert request.letter_index(middle, 0) == -1


def test_a_run_prints_in_one_line(canned: Run) -> None:
    """Whoever prints a run in a notebook must not wait for ever: everything in it points at everything."""
    for journey in (canned, canned.requests[0], canned.steps[0], canned.bags[0], canned.requests[0].stays[0]):
        assert len(repr(journey)) < 200
    assert len(repr(canned.bags[0].letters[0])) < 500


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
    assert [[share.tokens for share in stay.spells[0].shares] for stay in request.stays] == [[5, 1], [5, 1]]
    assert request.steps[0].requests == [request]
