from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.tracing import make
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.journey.model import Ends, Take


@given(st.lists(st.integers()), st.integers(0, 4), st.integers(0, 4))
def test_a_list_may_be_cut_down_to_its_ends(items: list[int], first: int, last: int) -> None:
    ends = Ends(items)
    ends.cut(first, last)
    expected = items if len(items) <= first + last else items[:first] + items[len(items) - last :]
    assert list(ends) == expected
    assert (ends.total, ends.skipped) == (len(items), len(items) - len(expected))
    ends.append(7)
    assert ends.total == len(items) + 1


def test_letters_are_made_once() -> None:
    front = make.front()
    request = make.request((front, make.accept()), (front, make.sort(0, 10, [(1, 1, "p")])))
    assert request.letters[0] is request.letters[0].bag.letters[0]


def test_a_letter_is_found_by_where_it_lay() -> None:
    """With two answers to one prompt, a bag holds two letters of one request."""
    front = make.front()
    bags = [(front, make.sort(number, 10 * number, [(1, 1, "p"), (2, 1, "p"), (1, 1, "s")])) for number in range(3)]
    request = make.request((front, make.accept()), *bags)
    lay = zip(request.bags, request.places, strict=True)
    assert [request.letter_index(bag, place) for bag, place in lay] == list(range(6))
    assert request.fates == "pspsps"
    middle = request.bags[2]
    request.cut(1)
    assert request.letter_index(middle, 0) == -1


def test_a_take_brings_what_was_sorted_since_the_one_before() -> None:
    """Slices end 4 ns after their bag came. What was kept back comes with the next letter that is put."""
    front = make.front()
    letters = ["k", "p", "s", "k", "p", "p"]
    bags = [(front, make.sort(number, 10 * number, [(1, number + 1, fate)])) for number, fate in enumerate(letters)]
    request = make.request((front, make.accept()), *bags, (front, rec.Takes([1, 1, 1], [30, 46, 100])))
    assert request.takes == [Take(30, 1 + 2 + 3, 30 - 14), Take(46, 4 + 5, 46 - 44), Take(100, 6, 100 - 54)]
    assert request.waits == [16, 2, 46]


def test_a_farewell_brings_what_was_kept_back() -> None:
    front = make.front()
    request = make.request(
        (front, make.accept()),
        (front, make.sort(0, 10, [(1, 2, "p")])),
        (front, make.sort(1, 20, [(1, 3, "k")])),
        (front, rec.Farewell(1, 30, "p")),
        (front, rec.Takes([1, 1], [18, 35])),
    )
    assert request.takes == [Take(18, 2, 4), Take(35, 3, 5)]


def test_what_several_answers_brought_is_written_down() -> None:
    """What one of them keeps back does not come with the next letter of another."""
    front = make.front()
    bag = make.sort(0, 10, [(1, 2, "p"), (1, 3, "k")])
    takes = [(front, rec.Takes([1], [18], [2])), (front, rec.Takes([1], [30], [0]))]
    request = make.request((front, make.accept()), (front, bag), (front, make.sort(1, 20, [(1, 0, "p")])), *takes)
    assert request.takes == [Take(18, 2, 4), Take(30, 0, 6)]


def test_a_wait_is_not_known_where_no_letter_was_recorded() -> None:
    """The level was lowered after the first one, and raised again."""
    front = make.front()
    letters = [(front, make.sort(0, 10, [(1, 1, "p")])), (front, make.sort(1, 50, [(1, 1, "p")]))]
    request = make.request((front, make.accept()), *letters, (front, rec.Takes([1, 1, 1], [18, 40, 60])))
    assert request.waits == [4, 0, 6]


def test_late_letters_move_no_other_into_a_slice_before() -> None:
    front = make.front()
    slices = [(12, 14, 3), (15, 17, 2)]
    sort = make.sort(0, 10, [(1, 1, "p"), (2, 1, "p"), (1, 1, "p")], late=[("x", 1)] * 2, slices=slices, gone=[2, 0])
    request = make.request((front, make.accept()), (front, sort))
    assert request.bags[0].t_sorted == [14, 17, 17]
    assert [letter.slice for letter in request.bags[0].letters] == [0, 1, 1, 1, 1]


def test_a_letter_lies_in_its_slice() -> None:
    front = make.front()
    sort = make.sort(0, 10, [(1, 1, "p")] * 5, slices=[(12, 14, 2), (15, 17, 3)])
    request = make.request((front, make.accept()), (front, sort))
    assert request.bags[0].t_sorted == [14, 14, 17, 17, 17]


def test_slices_that_do_not_add_up_are_not_met_as_an_error() -> None:
    front = make.front()
    sorts = make.sort(0, 10, [(1, 1, "p")] * 3, slices=[(12, 14, 1)]), make.sort(1, 20, [(1, 1, "p")], slices=[])
    request = make.request((front, make.accept()), *((front, sort) for sort in sorts))
    assert [bag.t_sorted for bag in dict.fromkeys(request.bags)] == [[14, 14, 14], [25]]


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
