from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vllm_lite.worker.attention.decode_run import ROOM, DecodeRun
from vllm_lite.worker.attention.metadata import AttentionMetadata


def step(**changes: Any) -> AttentionMetadata:
    """Two decodes of 7 and 3 tokens."""
    fields: dict[str, Any] = {
        "block_size": 4,
        "num_decodes": 2,
        "query_start_loc": np.array([0, 1, 2]),
        "seq_lens": np.array([7, 3]),
        "block_table": np.array([[5, 6], [7, 99]]),
        "slot_mapping": np.array([26, 30]),
    }
    return AttentionMetadata(**(fields | changes))


NEXT = {"seq_lens": np.array([8, 4]), "slot_mapping": np.array([27, 31])}


def test_a_run_goes_on_with_the_same_decodes_one_token_further() -> None:
    run = DecodeRun(step())
    assert run.goes_on(step(**NEXT))
    assert run.goes_on(step(seq_lens=np.array([9, 5]), block_table=np.array([[5, 6, 1], [7, 2, 99]])))  # each in a new block
    assert run.age == len(run.slots) == 2
    assert run.slots[0].tolist() == [27, 31]


@pytest.mark.parametrize(
    "other",
    [
        step(),
        step(seq_lens=np.array([8]), num_decodes=1, block_table=np.array([[5, 6]])),
        step(**NEXT, block_table=np.array([[5, 8], [7, 99]])),
        step(**NEXT, num_decodes=1),
        step(seq_lens=np.array([4, 8]), block_table=np.array([[7, 99], [5, 6]])),
    ],
    ids=["the same step", "one has left", "other blocks", "a prompt among them", "another order"],
)
def test_a_run_ends_with_anything_else(other: AttentionMetadata) -> None:
    run = DecodeRun(step())
    assert not run.goes_on(other)
    assert run.age == 0


def test_a_run_ends_for_want_of_room() -> None:
    table = np.array([list(range(1, 31)), list(range(31, 61))])
    run = DecodeRun(step(block_table=table))
    for age in range(1, ROOM + 2):
        assert run.goes_on(step(seq_lens=np.array([7 + age, 3 + age]), block_table=table)) == (age <= ROOM)
