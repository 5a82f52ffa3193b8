"""Paged attention by Triton kernels: prompts' chunks and decodes in one launch, over one list of work.

Process: worker, on the GPU (or in Triton's interpreter). Knows: one step's metadata as a list of work items on the device, the
tiles that suit a GPU. Does not know: the model, CUDA graphs. What a launch needs is static for a batch size: its grid, its
workspace and, with StepBuffer, every address; so a graph can hold it, with padding sequences that read the null block.
Mirrors: vllm/v1/attention/backends/triton_attn.py
"""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import triton

from vllm_lite.config import VllmConfig
from vllm_lite.wire.kv_cache_interface import FullAttentionSpec
from vllm_lite.worker.attention import triton_kernels
from vllm_lite.worker.attention.interface import AttentionBackend, PagedLayer
from vllm_lite.worker.attention.metadata import AttentionMetadata, Ints
from vllm_lite.worker.probe import AttentionCall
from vllm_lite.worker.step_buffer import StepBuffer

INTERPRETED = not isinstance(triton_kernels.attend, triton.JITFunction)
PROGRAMS_PER_PROCESSOR = 8  # decodes are split until there are about so many for each multiprocessor
MOST_SPLITS = 32
LOG2E = 1.4426950408889634


class Tiling(NamedTuple):
    """How one program works: `rows` of packed queries against tiles of `keys`, by `warps`, loading `stages` tiles ahead."""

    rows: int
    keys: int
    warps: int
    stages: int


def choose_tiling(queries: int, group: int, width: int, itemsize: int) -> Tiling:
    """For `queries` of `group` heads each, over keys of `width` numbers. A tile of keys is about 16 KiB."""
    rows = max(16, triton.next_power_of_2(queries * group))
    keys = min(max(16384 // (triton.next_power_of_2(width) * itemsize), 16), 64)
    # Decodes wait for memory and need many tiles under way; the block numbers, loaded first, take up two of the stages.
    return Tiling(rows, keys, warps=8 if rows >= 128 else 4, stages=5 if rows < 64 else 3)


def choose_splits(num_decodes: int, kv_heads: int, programs: int) -> int:
    """Shares that each decode's keys are cut into, a power of two, so that few decodes still make about `programs` programs."""
    wanted = min(programs // (max(num_decodes, 1) * kv_heads), MOST_SPLITS)
    return 1 << (wanted.bit_length() - 1) if wanted > 1 and num_decodes else 1


class TritonBackend(AttentionBackend):
    """See AttentionBackend. Its caches are [slots, Hkv, D]."""

    name = "triton"
    capturable = True

    def __init__(
        self, vllm_config: VllmConfig, device: torch.device, dtype: torch.dtype, calls: dict[str, AttentionCall]
    ) -> None:
        scheduler, block_size = vllm_config.scheduler_config, vllm_config.cache_config.block_size
        assert vllm_config.model_config.max_model_len is not None
        self._device, self._dtype, self._block_size = device, dtype, block_size
        gpu = device.type == "cuda"
        processors = torch.cuda.get_device_properties(device).multi_processor_count if gpu else 2
        self._programs = processors * PROGRAMS_PER_PROCESSOR
        self._chunk_queries = min(_chunk_queries(call, dtype.itemsize) for call in calls.values())
        table = scheduler.max_num_seqs * -(-vllm_config.model_config.max_model_len // block_size)
        self._step = StepBuffer(5 * scheduler.max_num_batched_tokens + table + 16, torch.int32, device)
        self._plan = torch.zeros(6, dtype=torch.int64)
        floats = max(_workspace_floats(call, scheduler.max_num_seqs, self._programs) for call in calls.values())
        self._workspace = torch.empty(floats, dtype=torch.float32, device=device)

    def allocate(self, spec: FullAttentionSpec, num_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Two zeroed tensors, [num_blocks * block_size, Hkv, D] and [..., Dv]."""
        zeros = partial(torch.zeros, dtype=self._dtype, device=self._device)
        slots, heads = num_blocks * spec.block_size, spec.num_kv_heads
        return zeros(slots, heads, spec.head_size), zeros(slots, heads, spec.head_size_v)

    def begin_step(self, metadata: AttentionMetadata) -> None:
        """Send the list of work, the slots to write and the block table to the device, in one copy."""
        queries = 1 if metadata.num_decodes == metadata.num_reqs else self._chunk_queries
        work = list_work(metadata, queries)
        offsets = self._step.upload(work, metadata.slot_mapping, metadata.block_table)
        self._plan.numpy()[:] = [*offsets, len(work), metadata.num_decodes, queries]

    def attend(self, layer: PagedLayer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See AttentionBackend.attend."""
        function = torch.ops.vllm_lite.paged_attention if torch.compiler.is_compiling() else paged_attention
        out: torch.Tensor = function(
            query,
            key,
            value,
            layer.key_cache,
            layer.value_cache,
            layer.sinks,
            self._step.tensor,
            self._plan,
            self._workspace,
            scaling=layer.scaling,
            softcap=layer.softcap or 0.0,
            window=layer.sliding_window or 0,
            block_size=self._block_size,
            programs=self._programs,
        )
        return out


def list_work(metadata: AttentionMetadata, queries: int) -> Ints:
    """int64 [items, 4]: up to `queries` tokens of one sequence each, decodes first; see `triton_kernels.attend`."""
    counts = np.diff(metadata.query_start_loc)
    items = -(-counts // queries)
    owner = np.repeat(np.arange(len(items)), items)
    offset = (np.arange(len(owner)) - np.repeat(np.cumsum(items) - items, items)) * queries
    first_row = metadata.query_start_loc[owner] + offset
    first_position = (metadata.seq_lens - counts)[owner] + offset
    first_block = owner * metadata.block_table.shape[1]
    return np.stack([first_row, np.minimum(counts[owner] - offset, queries), first_position, first_block], axis=1)


def paged_attention(  # noqa: PLR0917  (torch wants the tensors of an op by position)
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    sinks: torch.Tensor | None,
    step: torch.Tensor,
    plan: torch.Tensor,
    workspace: torch.Tensor,
    *,
    scaling: float,
    softcap: float,
    window: int,
    block_size: int,
    programs: int,
) -> torch.Tensor:
    """Write keys [Hkv, T, D] and values [Hkv, T, Dv], then attend with query [H, T, D]; returns [T, H, Dv].

    `step` int32 is what begin_step sent; `plan` int64 [6], on the host, says where in it the work, the slots and the block
    table begin, then: items, decodes, queries of an item. It is a tensor, and `step` the whole buffer, so that to torch.compile
    every step looks alike. `workspace` float32 is scratch. `softcap` and `window` are 0 where there is none.
    """
    work, slots, table, num_items, num_decodes, queries = plan.tolist()
    query, key, value = (x if x.stride(2) == 1 else x.contiguous() for x in (query, key, value))
    (heads, num_tokens, width), (kv_heads, _, value_width) = query.shape, value.shape
    sizes = {"KV_HEADS": kv_heads, "WIDTH": width, "VALUE_WIDTH": value_width}
    sizes |= {"WIDTH_PADDED": triton.next_power_of_2(width), "VALUE_PADDED": triton.next_power_of_2(value_width)}
    triton_kernels.store_kv[(num_tokens,)](
        key_cache,
        value_cache,
        key,
        value,
        step[slots:],
        *key.stride()[:2],
        *value.stride()[:2],
        HEADS_PADDED=triton.next_power_of_2(kv_heads),
        **sizes,
        enable_fp_fusion=True,
    )
    out = query.new_empty(num_tokens, heads, value_width)
    splits = choose_splits(num_decodes, kv_heads, programs)
    partial_sums = workspace[num_decodes * heads * splits * sizes["VALUE_PADDED"] :]
    tiling = choose_tiling(queries, heads // kv_heads, max(width, value_width), query.dtype.itemsize)
    triton_kernels.attend[(num_items, kv_heads, splits)](
        out,
        workspace,
        partial_sums,
        query,
        key_cache,
        value_cache,
        out if sinks is None else sinks,
        step[work:],
        step[table:],
        scaling / softcap if softcap else scaling * LOG2E,
        softcap * LOG2E,
        num_decodes,
        splits,
        *query.stride()[:2],
        HEADS=heads,
        **sizes,
        BLOCK_SIZE=block_size,
        WINDOW=window,
        HAS_CAP=softcap > 0,
        HAS_SINKS=sinks is not None,
        ROWS=tiling.rows,
        TILE=tiling.keys,
        UPCAST=INTERPRETED and query.dtype == torch.bfloat16,  # the interpreter multiplies bfloat16 wrongly
        num_warps=tiling.warps,
        num_stages=tiling.stages,
        enable_fp_fusion=True,
    )
    if splits > 1:
        triton_kernels.combine[(num_decodes, heads)](
            out,
            workspace,
            partial_sums,
            splits,
            HEADS=heads,
            VALUE_WIDTH=value_width,
            VALUE_PADDED=sizes["VALUE_PADDED"],
            MOST_SPLITS=MOST_SPLITS,
            enable_fp_fusion=True,
        )
    return out


def _shape_alone(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
    return query.new_empty(query.shape[1], query.shape[0], value.shape[2])


torch.library.custom_op("vllm_lite::paged_attention", paged_attention, mutates_args=("key_cache", "value_cache"))
torch.library.register_fake("vllm_lite::paged_attention", _shape_alone)


def _chunk_queries(call: AttentionCall, itemsize: int) -> int:
    """Queries of a chunk that one program of this layer takes: as many as its registers hold beside their results."""
    width = max(call.head_size, call.head_size_v)
    rows = 128 if width <= 128 and itemsize == 2 else 64 if itemsize == 2 else 32
    return max(1, rows // (call.num_heads // call.num_kv_heads))


def _workspace_floats(call: AttentionCall, max_num_seqs: int, programs: int) -> int:
    """Numbers that the partial softmaxes of this layer take at most."""
    splits = [(count, choose_splits(count, call.num_kv_heads, programs)) for count in range(1, max_num_seqs + 1)]
    parts = max(count * split for count, split in splits if split > 1 or count == 1)
    return parts * call.num_heads * (int(triton.next_power_of_2(call.head_size_v)) + 2)
