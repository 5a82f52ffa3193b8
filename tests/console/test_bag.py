from __future__ import annotations

import pytest

from tests.console.screens import Golden, lines
from tests.console.story import Caller, Teller, crowd, short_story
from tests.tracing import make
from vllm_lite.console.bag import BagView
from vllm_lite.console.demo import canned_run
from vllm_lite.tracing import records as rec


def test_golden(golden: Golden) -> None:
    golden("bag", BagView(short_story(), 5))
    golden("bag-canned", BagView(canned_run(), 3))
    golden("bag-crowd", BagView(crowd(), 7))


def test_every_stretch_from_schedule_to_the_mailboxes() -> None:
    text = lines(BagView(short_story(), 5))
    assert [line[12:34].strip() for line in text[2:-4]] == [
        *("S5 schedule", "S6 execute", "prepare", "forward", "sample", "S7 bag: update", "queued for output", "encode"),
        *("wire", "S8 sort: decode", "slice 1: 2 letters", "aborts, figures"),
    ]
    assert text[-3:] == [
        "S9 mailbox   A put: 1 token, taken after 45 us",
        "             B stapled: 1 token, one of 3 letters taken after 32.9 ms",
        "             C late: 1 token for a request that is gone",
    ]


def test_what_a_stretch_took() -> None:
    text = "\n".join(lines(BagView(short_story(), 5)))
    assert "S5 schedule                    0       147 |" in text
    assert "   wire" in text
    assert "encode                 16,268        45 |" in text


def test_a_pause_between_slices_is_a_stretch_of_its_own() -> None:
    run = short_story()
    sort = run.bags[0].sort
    received, done = sort.t_received, sort.t_done
    sort.slices = [(received + 80_000, received + 100_000, 2), (received + 150_000, done, 1)]
    text = "\n".join(lines(BagView(run, 0)))
    assert "slice 1: 2 letters" in text
    assert "slice 2: 1 letter " in text
    assert next(line for line in text.splitlines() if "yield to others" in line).split()[4] == "50"


def test_letters_of_other_fates() -> None:
    run = short_story()
    letters = run.bags[0].letters
    letters[0] = letters[0]._replace(fate=rec.KEPT_BACK)
    letters[1] = letters[1]._replace(request=None)
    text = "\n".join(lines(BagView(run, 0)))
    assert "A kept back: 1 token, to come with a later letter" in text
    assert "? put: 1 token" in text


def test_many_letters_are_counted() -> None:
    assert lines(BagView(crowd(), 7))[-1] == "   : 23 letters more"


def test_without_single_letters_it_says_so() -> None:
    run = Teller([Caller()], level=1).tell()
    assert lines(BagView(run, 0))[-1] == "Single letters are recorded from level 2."


@pytest.mark.parametrize("level", [1, 3])
def test_a_bag_whose_request_was_gone_says_so_at_every_level(level: int) -> None:
    front = make.front()
    run = make.run((front, make.accept(level=level)), (front, make.sort(0, 10, [])))
    assert lines(BagView(run, 0))[-1] == "No letter came of it: its request was gone."


def test_a_bag_that_is_not_there() -> None:
    with pytest.raises(KeyError):
        BagView(short_story(), 99)
