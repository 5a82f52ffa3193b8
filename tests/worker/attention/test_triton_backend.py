from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.attention_cases import BOUNDS, CASES, Case, error, reference, set_scene, triton_backend
from vllm_lite.worker.attention.metadata import AttentionMetadata
from vllm_lite.worker.attention.triton_backend import Tiling, choose_splits, choose_tiling, list_work

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_agrees_with_the_reference(case: Case) -> None:
    assert error(case, CPU) < BOUNDS[case.dtype]


@settings(max_examples=10, deadline=None)
@given(
    chunks=st.lists(st.tuples(st.integers(2, 40), st.integers(0, 100)), max_size=2),
    decodes=st.lists(st.integers(0, 150), max_size=3),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 2), (5, 1)]),
    window=st.sampled_from([None, 1, 17, 200]),
    block_size=st.sampled_from([2, 7, 16, 64]),
    features=st.tuples(st.sampled_from([None, 1.5]), st.booleans()),
)
def test_it_agrees_on_any_batch(
    chunks: list[tuple[int, int]],
    decodes: list[int],
    heads: tuple[int, int],
    window: int | None,
    block_size: int,
    features: tuple[float | None, bool],
) -> None:
    batch = (*((1, before) for before in decodes), *chunks) or ((3, 0),)
    softcap, sinks = features
    case = Case("any", batch, heads, window=window, softcap=softcap, sinks=sinks, block_size=block_size)
    assert error(case, CPU) < BOUNDS[case.dtype]


def test_keys_and_values_land_in_their_slots_and_nowhere_else() -> None:
    case = Case("", ((1, 20), (5, 0)), widths=(24, 16), block_size=4)
    scene, backend = set_scene(case), triton_backend(case, CPU)
    backend.begin_step(scene.metadata)
    caches: list[torch.Tensor] = []
    allocate = backend.allocate
    backend.allocate = lambda *args: caches.extend(allocate(*args)) or tuple(caches)  # type: ignore[method-assign]
    scene.attend(backend, CPU, case.dtype)
    for cache, past, new in zip(caches, scene.past, (scene.key, scene.value), strict=True):
        expected = past.float()
        expected[scene.metadata.slot_mapping] = new.transpose(0, 1).float()
        assert torch.equal(cache, expected)


def test_sequences_of_one_step_may_share_blocks_that_it_fills() -> None:
    case = Case("", ((1, 32), (40, 0)), block_size=16)
    scene, backend = set_scene(case), triton_backend(case, CPU)
    scene.metadata.block_table[0, :2] = scene.metadata.block_table[1, :2]  # read by the first, written by the second
    backend.begin_step(scene.metadata)
    assert torch.allclose(scene.attend(backend, CPU, case.dtype).double(), reference(scene), atol=1e-5)


def test_the_list_of_work() -> None:
    metadata = AttentionMetadata(
        block_size=4,
        num_decodes=2,
        query_start_loc=np.array([0, 1, 2, 12]),
        seq_lens=np.array([9, 1, 14]),
        block_table=np.zeros((3, 5), np.int64),
        slot_mapping=np.zeros(12, np.int64),
    )
    decodes = [[0, 1, 8, 0], [1, 1, 0, 5]]
    assert list_work(metadata, 4).tolist() == [*decodes, [2, 4, 4, 10], [6, 4, 8, 10], [10, 2, 12, 10]]
    assert list_work(metadata, 64).tolist() == [*decodes, [2, 10, 4, 10]]


@pytest.mark.parametrize(
    ("decodes", "kv_heads", "splits"), [(0, 8, 1), (1, 8, 32), (2, 8, 32), (8, 8, 16), (64, 8, 2), (100, 8, 1), (256, 8, 1)]
)
def test_few_decodes_are_split_until_the_gpu_is_full(decodes: int, kv_heads: int, splits: int) -> None:
    assert choose_splits(decodes, kv_heads, programs=132 * 8) == splits


@pytest.mark.parametrize(
    ("queries", "group", "width", "itemsize", "tiling"),
    [
        (1, 2, 128, 2, Tiling(16, 64, 4, 5)),
        (64, 2, 128, 2, Tiling(128, 64, 8, 3)),
        (21, 3, 64, 2, Tiling(64, 64, 4, 3)),
        (32, 2, 256, 2, Tiling(64, 32, 4, 3)),
        (1, 71, 64, 2, Tiling(128, 64, 8, 3)),
        (16, 2, 128, 4, Tiling(32, 32, 4, 5)),
    ],
)
def test_tiles(queries: int, group: int, width: int, itemsize: int, tiling: Tiling) -> None:
    assert choose_tiling(queries, group, width, itemsize) == tiling
