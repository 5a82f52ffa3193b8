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
