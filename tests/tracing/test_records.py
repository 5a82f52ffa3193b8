from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracing import make
from vllm_lite.tracing import records as rec

KINDS = get_args(rec.AnyRecord)
_ONE = msgspec.msgpack.Decoder(rec.AnyRecord)


def some(kind: type[rec.Record]) -> st.SearchStrategy[rec.Record]:
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name in kind.__struct_fields__}
    return st.builds(kind, **{name: value_of(hint) for name, hint in hints.items()})


def value_of(hint: Any) -> st.SearchStrategy[Any]:
    arguments = get_args(hint)
    if hint == dict[str, rec.AttributeValue]:
        value = st.booleans() | integers | st.floats(allow_nan=False) | st.text() | st.lists(st.text())
        return st.dictionaries(st.text(), value)
    if hint is int:
        return integers
    if hint is float:
        return st.floats(allow_nan=False)
    if get_origin(hint) in (list, Sequence):
        return st.lists(value_of(arguments[0]), max_size=3)
    if get_origin(hint) is tuple:
        return st.tuples(*map(value_of, arguments))
    if get_origin(hint) is dict:
        return st.dictionaries(*map(value_of, arguments), max_size=3)
    return st.one_of(map(value_of, arguments)) if arguments else st.from_type(hint)


integers = st.integers(-(1 << 63), (1 << 63) - 1)
any_record = st.one_of([some(kind) for kind in KINDS])


@given(any_record)
def test_every_record_comes_back_as_it_was(record: rec.Record) -> None:
    assert _ONE.decode(msgspec.msgpack.encode(record)) == record


def test_a_reader_fills_fields_that_an_older_writer_did_not_know() -> None:
    old = msgspec.msgpack.encode([24, 3, 10, 20, [[1, "stop"]]])  # an Update before it told its number of bags
    assert _ONE.decode(old) == rec.Update(3, 10, 20, [(1, "stop")], num_bags=-1)


def test_a_reader_ignores_fields_that_a_newer_writer_added() -> None:
    new = msgspec.msgpack.encode([23, 3, 10, 20, "6" * 16, "something new"])
    assert _ONE.decode(new) == rec.Execute(3, 10, 20, "6" * 16)


@pytest.mark.parametrize(
    ("record", "newest"),
    [
        (make.accept(t=7), 7),
        (rec.Tokenise(1, 1, 8, 3), 8),
        (make.post(t0=1, t1=9), 9),
        (make.sort(0, 10), 15),
        (rec.Takes([1, 1], [4, 11]), 11),
        (make.abort(t=12), 12),
        (make.close(t=13), 13),
        (make.call(0, 13), 13),
        (make.receive(t0=1, t1=14), 14),
        (make.receive_abort(t=15), 15),
        (make.schedule(0, 14, {1: 1}), 16),
        (make.execute(0, 1, 17), 17),
        (make.update(0, 1, 18), 18),
        (make.send(0, 17), 19),
        (rec.Leave(1, 20, "api", "waiting"), 20),
        (make.serve(18, 19, 20), 20),
        (make.work(0, 1, 21), 21),
        (rec.Phase("warm_up", 1, 22), 22),
        (rec.EngineDead(0, 23), 23),
        (rec.Dropped(1, "no room"), 0),
        (rec.Bye(24), 24),
    ],
)
def test_newest_is_the_latest_time(record: rec.Record, newest: int) -> None:
    assert record.newest == newest
