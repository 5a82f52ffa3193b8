from __future__ import annotations

import numpy as np

from vllm_lite.worker.attention.metadata import AttentionMetadata

META = AttentionMetadata(
    block_size=4,
    num_decodes=2,
    query_start_loc=np.array([0, 1, 2, 5]),
    seq_lens=np.array([6, 2, 9]),
    block_table=np.array([[5, 6, 0], [7, 99, 99], [1, 2, 3]]),
    slot_mapping=np.arange(5),
)


def test_slots_of_one_sequence() -> None:
    assert META.num_reqs == 3
    assert META.slots(2, first=0).tolist() == [4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert META.slots(2, first=6).tolist() == [10, 11, 12]


def test_padded_slots_point_to_the_null_block_where_there_is_no_token() -> None:
    slots, valid = META.padded_slots(np.array([0, 1]), window=None)
    assert slots.tolist() == [[20, 21, 22, 23, 24, 25], [28, 29, 0, 0, 0, 0]]
    assert valid.sum(axis=1).tolist() == [6, 2]


def test_the_length_is_rounded_up() -> None:
    slots, valid = META.padded_slots(np.array([0, 1]), window=None, multiple=4)
    assert slots.tolist() == [[20, 21, 22, 23, 24, 25, 0, 0], [28, 29, 0, 0, 0, 0, 0, 0]]
    assert valid.sum(axis=1).tolist() == [6, 2]


def test_a_window_leaves_the_last_tokens() -> None:
    slots, valid = META.padded_slots(np.array([0, 1]), window=3)
    assert slots.tolist() == [[23, 24, 25], [28, 29, 0]]
    assert valid.tolist() == [[True, True, True], [True, True, False]]
