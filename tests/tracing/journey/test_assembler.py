from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.tracing import make
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing import records as rec
from vllm_lite.tracing.journey import LATE
from vllm_lite.tracing.journey.assembler import EARLY, Assembler, Known
from vllm_lite.tracing.journey.load import assembled
from vllm_lite.tracing.process import Process
from vllm_lite.tracing.reader import RunReader
from vllm_lite.tracing.spans import Span, run_spans

Pairs = list[tuple[Process, rec.Record]]


def thread_of(record: rec.Record) -> str:
    if isinstance(record, rec.Receive | rec.ReceiveAbort):
        return "input"
    return "output" if isinstance(record, rec.Send) else "main"


def facts(span: Span) -> tuple[Any, ...]:
    links = sorted((link.trace_id, link.span_id, str(link.attributes)) for link in span.links)
    attributes = str(sorted(span.attributes.items()))
    return span.span_id, span.parent_span_id, span.name, span.start, span.end, attributes, links, span.events, span.error


def spans_in_any_order(run_dir: Path, shuffle: random.Random) -> list[Any]:
    """The run's spans, its spools read in a random interleaving that keeps the order within each."""
    reader, assembler = RunReader(run_dir), Assembler()
    spools: dict[Any, Pairs] = {}
    for process, record in reader.poll():
        spools.setdefault((id(process), thread_of(record)), []).append((process, record))
    waiting = [pairs[::-1] for pairs in spools.values()]
    while waiting:
        assembler.feed(*shuffle.choice(waiting).pop())
        waiting = [pairs for pairs in waiting if pairs]
    assembler.finish()
    assert assembler.unclaimed == 0
    return sorted(map(facts, run_spans(assembled(run_dir, [reader], assembler))))


@pytest.mark.parametrize("name", ["canned_dir", "dead_dir"])
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=25, deadline=None)
def test_the_order_of_spools_does_not_matter(request: pytest.FixtureRequest, name: str, seed: int) -> None:
    run_dir = request.getfixturevalue(name)
    assert spans_in_any_order(run_dir, random.Random(seed)) == spans_in_any_order(run_dir, random.Random(0))


def test_records_of_a_request_whose_beginning_is_lost_are_counted() -> None:
    assembler = make.assemble((make.front(), rec.Tokenise(9, 1, 2, 3)), (make.front(), make.close(9)))
    assert assembler.unclaimed == 2
    assert not assembler.requests


def test_an_end_in_a_step_that_is_not_recorded_belongs_to_its_stay() -> None:
    core = make.core()
    assembler = make.assemble((core, make.receive()), (core, make.update(-1, 60, 70, [(1, "length")])))
    assert assembler.unclaimed == 0
    [stay] = assembler.strays
    assert (stay.finish_reason, stay.t_end) == ("length", 70)


def test_what_waits_for_a_lost_step_is_counted_at_the_end() -> None:
    assembler = make.assemble((make.worker(), make.work(1, 10, 20)), (make.core(), make.send(1, 30)))
    assert assembler.unclaimed == 0
    assembler.finish()
    assert assembler.unclaimed == 2


def test_a_process_that_an_error_ended_has_died() -> None:
    core = make.core(threads={"main": True})
    make.assemble((core, rec.Phase("drain", 1, 2)))
    assert (core.ended, core.died) == (True, False)
    make.assemble((core, rec.Phase("shutdown", 1, 2, ("RuntimeError", "worker 0 ended"))), (core, rec.Phase("more", 3, 4)))
    assert (core.ended, core.died) == (True, True)


def test_only_so_many_traces_may_wait() -> None:
    core, assembler = make.core(), Assembler()
    for number in range(EARLY + 5):
        assembler.feed(core, make.send(number, 30))
    assert assembler.unclaimed == 5


def test_letters_know_their_slice() -> None:
    front = make.front()
    letters = [(1, 2, "p"), (0, 1, "p"), (1, 1, "s"), (2, 1, "k")]
    slices = [(1, 2, 1), (3, 4, 2), (5, 6, 2)]
    request = make.assemble(
        (front, make.accept(1)),
        (front, make.accept(2)),
        (front, make.post(2)),
        (front, make.sort(0, 10, letters, late=[("2_0", 3), ("nobody", 1)], slices=slices)),
        (front, make.sort(1, 20, [(1, 1, "p")])),
    )
    first, second = request.requests.values()
    assert [(letter.slice, letter.tokens) for letter in first.letters] == [(0, 2), (1, 1), (0, 1)]
    assert [letter.fate for letter in second.letters] == ["k"]
    assert [letter.tokens for letter in second.late] == [3]
    bag = request.bags[0]
    assert [(letter.request, letter.slice, letter.fate) for letter in bag.letters] == [
        (first, 0, "p"),
        (None, 1, "p"),
        (first, 1, "s"),
        (second, 2, "k"),
        (second, 2, LATE),
        (None, 2, LATE),
    ]


def test_a_bag_at_level_1_has_only_its_late_letters() -> None:
    front = make.front()
    sort = make.sort(0, 10, reqs=[], tokens=[], fates="", num_outputs=3, late=[("1_0", 1)], slices=[(12, 13, 3)])
    assembler = make.assemble((front, make.accept()), (front, make.post()), (front, sort))
    assert [letter.fate for letter in assembler.bags[0].letters] == [LATE]


def test_stop_string_aborts_belong_to_the_bag_they_were_found_in() -> None:
    front = make.front()
    assembler = make.assemble(
        (front, make.accept()),
        (front, make.accept(2)),
        (front, make.abort(1, t=12, reason="stop_string")),
        (front, make.abort(2, t=13, reason="api")),
        (front, make.sort(0, 10, [(1, 1, "p")])),
        (front, make.sort(1, 20, [(1, 1, "p")])),
    )
    assert [[abort.req for _, abort in bag.aborts] for bag in assembler.bags] == [[1], []]


def test_a_preemption_begins_a_new_spell() -> None:
    front, core = make.front(), make.core()
    request = make.request(
        (front, make.accept()),
        (front, make.post()),
        (core, make.receive(t1=40)),
        (core, make.schedule(0, 50, {1: 5}, prefills=[1], new=[(1, 3)])),
        (core, make.schedule(1, 60, {1: 1})),
        (core, make.schedule(2, 70, {}, preempted=[1])),
        (core, make.schedule(3, 80, {1: 6}, prefills=[1], new=[(1, 4)])),
    )
    first, second = request.stays[0].spells
    assert (first.t_queued, first.t_scheduled, first.t_preempted, first.num_cached_tokens) == (40, 50, 70, 3)
    assert [(share.step.index, share.tokens, share.prefill) for share in first.shares] == [(0, 5, True), (1, 1, False)]
    assert [share.step.index for share in first.prefills] == [0]
    assert (second.t_queued, second.t_scheduled, second.t_preempted, second.num_cached_tokens) == (70, 80, None, 4)


def test_each_client_gets_its_own_bag() -> None:
    one, two, core = make.front(), Process("frontend", 9, "host", "boot"), make.core()
    to_two = f"00-{make.step_trace(0)}-81{0:014x}-01"
    step = make.step(
        (one, make.sort(0, 40)),
        (two, make.sort(0, 41, trace=to_two)),
        (core, make.send(0, 30, client=0)),
        (core, make.send(0, 31, client=1)),
        (core, make.schedule(0, 10, {})),
    )
    assert [(bag.process, bag.send.client_index if bag.send else None) for bag in step.bags] == [(one, 0), (two, 1)]


def test_what_is_forgotten_is_gone_and_holds_on_to_nothing() -> None:
    front, core = make.front(), make.core()
    assembler = make.assemble(
        (front, make.accept()),
        (front, make.post()),
        (core, make.receive()),
        (core, make.schedule(0, 50, {1: 5})),
        (core, make.send(0, 60)),
        (front, make.sort(0, 70, [(1, 1, "p")])),
    )
    [request], [step] = assembler.requests.values(), assembler.steps.values()
    assembler.forget_request(request)
    assembler.forget_step(step)
    known = (assembler._posted, assembler._posts, assembler.steps)
    tables = (assembler.requests, assembler.stays[core], assembler._received, assembler._steps_by_number)
    assert [len(table) for table in (*tables, *known, *(table.waiting for table in known))] == [0] * 10
    assert [len(held) for held in (step.members, request.bags, request.stays[0].spells)] == [0] * 3
    assert [letter.request for letter in step.bags[0].letters] == [None]
    assembler.feed(front, rec.Takes([1], [80]))
    assert assembler.unclaimed == 1


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (make.sort(0, 10, [(1, 1, "p")], tokens=[]), "Sort"),
        (make.sort(0, 10, [(1, 1, "p")], fates="pp"), "Sort"),
        (rec.Takes([1], [80, 81]), "Takes"),
        (structs.replace(make.schedule(0, 50, {1: 5}), tokens=[]), "Schedule"),
    ],
)
def test_columns_of_different_lengths_are_refused_by_name(record: rec.Record, kind: str) -> None:
    with pytest.raises(VLLMValidationError, match=f"^the frontend 1 wrote a {kind} record whose columns differ in length"):
        make.assemble((make.front(), make.accept()), (make.front(), record))


def test_who_waits_longest_is_given_up_when_too_many_wait() -> None:
    known, came = Known[str](), list[str]()
    assert [known.then(str(number), came.append) for number in range(EARLY + 2)] == [0] * EARLY + [1, 1]
    for key in ("0", "1", "2"):
        known.add(key, key)
    assert came == ["2"]
