"""Decode steps as CUDA graphs: captured once for each batch size, replayed with new numbers in the old places.

Process: worker. Knows: how to pad a step of decodes to a captured size, what a capture must see. Does not know: the model, the
attention backend, where a step's numbers lie (StepBuffer puts equal sizes at equal addresses). A padding sequence has one
token, whose key goes nowhere (slot -1) and which attends to the null block; it costs next to nothing, and nobody reads its
logits.
Mirrors: vllm/v1/cudagraph_dispatcher.py, vllm/compilation/cuda_graph.py
"""

import dataclasses
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vllm_lite.exceptions import UnsupportedModelError
from vllm_lite.worker.attention.metadata import AttentionMetadata, Ints
from vllm_lite.worker.input_batch import StepBatch

Run = Callable[[], torch.Tensor]
Capture = Callable[[Run], tuple[Callable[[], object], torch.Tensor]]


class CudaCapture:
    """Turns a call into a replay and the tensor that holds its result after each replay.

    All graphs share one pool of memory: only one runs at a time, and a result is used before the next replay.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, run: Run) -> tuple[Callable[[], object], torch.Tensor]:
        """Run once outside, for what cannot be captured (kernels are compiled, libraries set up), then capture."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            result = run()
        return graph.replay, result


class DecodeGraphs:
    """One graph for each batch size of `sizes`, ascending."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self._graphs: dict[int, tuple[Callable[[], object], torch.Tensor]] = {}

    def capture(
        self,
        block_size: int,
        prepare: Callable[[StepBatch, Ints], tuple[torch.Tensor, ...]],
        forward: Callable[..., torch.Tensor],
        capture: Capture,
    ) -> None:
        """Capture steps of padding alone, the largest first, so that the smaller find room in its memory.

        `prepare` takes a step and the rows whose logits are wanted, and puts both where the device finds them; what it returns
        goes to `forward`, which returns logits [rows, V]. Raises UnsupportedModelError for a model that cannot be captured.
        """
        for size in reversed(self.sizes):
            inputs = prepare(pad_decodes(_empty_step(block_size), size), np.arange(size))
            try:
                self._graphs[size] = capture(partial(forward, *inputs))
            except RuntimeError as error:
                raise UnsupportedModelError(
                    f"a decode step of {size} requests cannot be captured as a CUDA graph ({error}): give --enforce-eager"
                ) from error

    def fitting(self, num_decodes: int) -> int | None:
        """The smallest captured size that holds so many; None where there is none."""
        index = bisect_left(self.sizes, num_decodes)
        return self.sizes[index] if index < len(self.sizes) and self._graphs else None

    def replay(self, size: int) -> torch.Tensor:
        """Logits [size, V] of the step that was prepared last, good until the next replay."""
        run, logits = self._graphs[size]
        run()
        return logits


def graph_sizes(max_num_seqs: int, least: int = 1) -> list[int]:
    """Powers of two from `least`, then `max_num_seqs` itself: padding at most doubles work that hardly depends on the size."""
    sizes = [least]
    while sizes[-1] * 2 < max_num_seqs:
        sizes.append(sizes[-1] * 2)
    return sizes if sizes[-1] >= max_num_seqs else [*sizes, max_num_seqs]


def pad_decodes(step: StepBatch, size: int) -> StepBatch:
    """The inputs of a step in which every request has one token, for `size` requests. Requests and rows stay what they are."""
    meta, extra = step.attention, size - step.attention.num_reqs
    attention = AttentionMetadata(
        block_size=meta.block_size,
        num_decodes=size,
        query_start_loc=np.arange(size + 1),
        seq_lens=_extended(meta.seq_lens, extra, 1),
        block_table=_extended(meta.block_table, extra, 0),
        slot_mapping=_extended(meta.slot_mapping, extra, -1),
    )
    token_ids, positions = _extended(step.token_ids, extra, 0), _extended(step.positions, extra, 0)
    return dataclasses.replace(step, token_ids=token_ids, positions=positions, attention=attention)


def _extended(array: npt.NDArray[Any], extra: int, value: int) -> npt.NDArray[Any]:
    return np.concatenate([array, np.full((extra, *array.shape[1:]), value, array.dtype)])


def _empty_step(block_size: int) -> StepBatch:
    none = np.zeros(0, np.int64)
    attention = AttentionMetadata(block_size, 0, np.zeros(1, np.int64), none, np.zeros((0, 1), np.int64), none)
    return StepBatch([], none, none, none, none, none.astype(np.bool_), attention)
