from __future__ import annotations

from tests.console.screens import Golden, lines, render
from tests.console.story import Caller, Teller, crowd, short_story
from vllm_lite.console.demo import canned_run
from vllm_lite.console.figures import span
from vllm_lite.console.timeline import Overview, Waterfall, ending
from vllm_lite.console.totals import Totals


def test_golden(golden: Golden) -> None:
    run = short_story()
    for number, name in enumerate("abc"):
        golden(f"waterfall-{name}", Waterfall(run.requests[number], number))
    golden("waterfall-preempted", Waterfall(canned_run().requests[2], 2))
    golden("waterfall-dead", Waterfall(canned_run(engine_dies=True).requests[0], 0))
    golden("overview", Overview(run))
    golden("overview-crowd", Overview(crowd()))


def test_every_station_that_was_met_has_a_row() -> None:
    text = lines(Waterfall(short_story().requests[2], 2))
    labels = [line[12:24].strip() for line in text[3:-2]]
    assert labels == [
        *("S1 accept", "S2 tokenise", "S3 post", "wire", "S4 receive", "queued", "prefill", "decode"),
        *("S5 schedule", "S6 execute", "S7 bag", "wire", "S8 sort", "S9 mailbox", "abort"),
    ]
    assert [line[:11].strip() for line in text[3:-2]] == [
        *("front end", "", "", "wire", "engine core", "", "", "", "", "worker", "engine core", "wire", "front end", "", ""),
    ]


def test_the_figures_of_a_row() -> None:
    text = "\n".join(lines(Waterfall(short_story().requests[2], 2)))
    assert "S2 tokenise       1      0.84 |" in text
    assert "S8 sort           6      1.48 |" in text
    assert "C 28 prompt tokens, 5 answer tokens, stop at '.'; first after 33.6 ms" in text
    assert "mailbox: 5 puts = 5 takes; longest wait 45 us" in text


def test_a_request_is_as_long_as_its_caller_saw_it_also_where_the_core_went_on() -> None:
    run = Teller([Caller(leaves_after=3)]).tell()
    request = run.requests[0]
    closed = request.process.wall(request.close.t) - request.process.wall(request.accept.t) if request.close else 0
    (stay,) = request.stays
    assert stay.t_end is not None
    assert stay.process.wall(stay.t_end) > request.process.wall(request.accept.t) + closed
    (title, *_), (total, *_) = lines(Waterfall(request, 0)), lines(Totals(run))
    assert f"  {span(closed)}  " in title
    assert f"within {span(closed)}  " in total


def test_what_ascii_fills_a_cell_with_is_explained() -> None:
    waterfall, legend = Waterfall(short_story().requests[0], 0), ".:-=+*# from a little of a cell's time to all of it"
    assert legend in render(waterfall, 80)
    assert "a cell's time" not in render(waterfall, 80, terminal=True)


def test_an_id_cannot_draw_on_the_screen() -> None:
    request = short_story().requests[0]
    request.accept.external_id = "x\x1b[2J\n"
    assert "\x1b" not in render(Waterfall(request, 0), 80)
    assert "REQUEST A  x\\x1b[2J\\n  " in render(Waterfall(request, 0), 80)


def test_a_request_without_an_end_is_drawn_as_far_as_it_came() -> None:
    run = short_story()
    run.requests[0].close = None
    text = lines(Waterfall(run.requests[0], 0))
    assert text[1] == "A still open where the recording ends"
    assert ending(run.requests[0]) == "open"
    assert next(line for line in lines(Overview(run)) if line.startswith("A ")).endswith("12       9  open")


def test_a_refused_request_is_one_mark_on_the_axis() -> None:
    run = Teller([Caller(), Caller()]).tell()
    refused = run.requests[1]
    refused.stays.clear()
    text = next(line for line in lines(Overview(run)) if line.startswith("B "))
    assert text[3] == "*"


def test_endings_in_words() -> None:
    crowded = {ending(request) for request in crowd().requests}
    assert crowded == {"length", "stop", "aborted"}
    assert ending(canned_run(engine_dies=True).requests[0]) == "engine dead"


def test_the_middle_of_many_requests_is_counted() -> None:
    text = lines(Overview(crowd(), rows=9))
    names = [line.split()[0] for line in text[2:-1]]
    assert names == ["A", "B", "C", "D", "E", "F", ":", "AL", "AM", "AN"]
    assert ": 31 requests more" in text
    assert len(lines(Overview(crowd(), rows=None))) == 2 + 40 + 1


def test_names_go_on_in_a_part_of_a_run() -> None:
    text = lines(Overview(short_story(), first=25))
    assert [line.split()[0] for line in text[2:5]] == ["Z", "AA", "AB"]


def test_a_run_without_requests() -> None:
    run = short_story()
    run.requests.clear()
    assert lines(Overview(run))[1] == "No request was traced in this run."
