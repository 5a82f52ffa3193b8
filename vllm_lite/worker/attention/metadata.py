"""One step's batch as attention sees it: whose tokens are where, and where their keys and values lie.

Process: worker. Knows: positions, slots, block tables (numpy, on the host). Does not know: tensors, models, backends.
Mirrors: vllm/v1/attention/backend.py (CommonAttentionMetadata)
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class AttentionMetadata:
    """A flat batch of T tokens from B sequences; the first `num_decodes` sequences have one token each.

    `query_start_loc` int64 [B+1]: where each sequence's tokens begin. `seq_lens` int64 [B]: tokens with keys and values once
    this step has written its own. `block_table` int64 [B, n]: enough columns for the longest sequence, the rest is whatever.
    `slot_mapping` int64 [T]: block number times block size plus offset, where each token's key and value go.
    """

    block_size: int
    num_decodes: int
    query_start_loc: Ints
    seq_lens: Ints
    block_table: Ints
    slot_mapping: Ints

    @property
    def num_reqs(self) -> int:
        """B."""
        return len(self.seq_lens)

    def slots(self, request: int, first: int) -> Ints:
        """Slots of one sequence's tokens from position `first` to its end: int64 [seq_lens[request] - first]."""
        positions = np.arange(first, self.seq_lens[request])
        blocks: Ints = self.block_table[request, positions // self.block_size]
        return np.asarray(blocks * self.block_size + positions % self.block_size)
