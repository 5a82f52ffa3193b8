"""Three kernels: write a step's keys and values into the pages, attend to the pages, add up what was split.

Process: worker, on the GPU (or in Triton's interpreter). Knows: pointers, strides and one list of work. Does not know: torch,
requests or layers. A cache is [slots, kv heads, width], contiguous; a slot is block number times block size plus offset.
Softmax works in powers of two: scores and sinks are scaled by log2(e) and exp2 does the rest.
Mirrors: vllm/v1/attention/ops/triton_unified_attention.py, vllm/v1/attention/ops/triton_reshape_and_cache_flash.py
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def store_kv(
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    slots: tl.tensor,
    key_head_stride: tl.tensor,
    key_token_stride: tl.tensor,
    value_head_stride: tl.tensor,
    value_token_stride: tl.tensor,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    WIDTH_PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
) -> None:
    """Program t copies token t's keys and values of all heads to slot `slots[t]` (int32 [T]); a negative slot is padding."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    head = tl.arange(0, HEADS_PADDED)[:, None]
    column = tl.arange(0, WIDTH_PADDED)[None, :]
    mask = (head < KV_HEADS) & (column < WIDTH)
    source = key + token * key_token_stride + head * key_head_stride + column
    tl.store(key_cache + (slot * KV_HEADS + head) * WIDTH + column, tl.load(source, mask), mask)
    column = tl.arange(0, VALUE_PADDED)[None, :]
    mask = (head < KV_HEADS) & (column < VALUE_WIDTH)
    source = value + token * value_token_stride + head * value_head_stride + column
    tl.store(value_cache + (slot * KV_HEADS + head) * VALUE_WIDTH + column, tl.load(source, mask), mask)


@triton.jit(do_not_specialize=["num_decodes", "splits"])
def attend(
    out: tl.tensor,
    partial_out: tl.tensor,
    partial_sums: tl.tensor,
    query: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    sinks: tl.tensor,
    work: tl.tensor,
    table: tl.tensor,
    scale: tl.tensor,
    cap: tl.tensor,
    num_decodes: tl.tensor,
    splits: tl.tensor,
    query_head_stride: tl.tensor,
    query_token_stride: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    WIDTH_PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    """Program (item, kv head, split): a few queries of one sequence against a share of its keys.

    `work` int32 [items, 4] says where: flat row of the first query, number of queries, position of the first one, index in
    `table` (int32, block numbers) of the sequence's first block. The query heads of a KV head are packed into ROWS rows, which
    is enough for every item. `query` is read by strides, [H, T, D]; `out` is [T, H, Dv], contiguous.
    The first `num_decodes` items are one query each, and `splits` programs share its keys. Where `splits` > 1 these leave their
    softmaxes in `partial_out` and `partial_sums` (float32 [items, H, splits, VALUE_PADDED] and [..., 2]) and `combine` writes
    `out`. `scale` is log2(e) times the scaling; with HAS_CAP it is the scaling over the cap, and `cap` log2(e) times the cap.
    """
    item, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if (split > 0) & (item >= num_decodes):
        return
    first_row = tl.load(work + item * 4).to(tl.int64)
    count = tl.load(work + item * 4 + 1)
    first_position = tl.load(work + item * 4 + 2)
    first_block = tl.load(work + item * 4 + 3).to(tl.int64)

    row = tl.arange(0, ROWS)
    group: tl.constexpr = HEADS // KV_HEADS
    number = row // group
    head = kv_head * group + row % group
    used = number < count
    column = tl.arange(0, WIDTH_PADDED)
    value_column = tl.arange(0, VALUE_PADDED)
    token = first_row + number
    position = first_position + number

    begin, end = 0, first_position + count
    if WINDOW > 0:
        begin = tl.maximum(0, first_position - WINDOW + 1)
    shares = tl.where(item < num_decodes, splits, 1)
    share = tl.cdiv(tl.cdiv(end - begin, TILE), shares) * TILE
    begin += split * share
    end = tl.minimum(end, begin + share)

    source = query + token[:, None] * query_token_stride + head[:, None] * query_head_stride + column[None, :]
    queries = tl.load(source, used[:, None] & (column < WIDTH)[None, :], 0.0)
    if UPCAST:
        queries = queries.to(tl.float32)
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if HAS_SINKS:
        if split == 0:
            highest = tl.load(sinks + head, used, 0.0).to(tl.float32) * LOG2E
            total += 1.0
    result = tl.zeros([ROWS, VALUE_PADDED], tl.float32)

    for start in range(begin, end, TILE):
        key_position = start + tl.arange(0, TILE)
        there = key_position < end
        block = tl.load(table + first_block + key_position // BLOCK_SIZE, there, 0).to(tl.int64)
        page = (block * BLOCK_SIZE + key_position % BLOCK_SIZE) * KV_HEADS + kv_head
        keys = tl.load(key_cache + page[:, None] * WIDTH + column[None, :], there[:, None] & (column < WIDTH)[None, :], 0.0)
        value_place = page[:, None] * VALUE_WIDTH + value_column[None, :]
        values = tl.load(value_cache + value_place, there[:, None] & (value_column < VALUE_WIDTH)[None, :], 0.0)
        if UPCAST:
            keys, values = keys.to(tl.float32), values.to(tl.float32)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        if HAS_CAP:
            scores = cap * (1 - 2 / (1 + tl.exp(2 * scores)))  # tanh
        visible = there[None, :] & (key_position[None, :] <= position[:, None])
        if WINDOW > 0:
            visible &= key_position[None, :] > position[:, None] - WINDOW
        scores = tl.where(visible, scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        floor = tl.where(new_highest == float("-inf"), 0.0, new_highest)  # -inf less -inf is not a number
        weights = tl.exp2(scores - floor[:, None])
        fade = tl.exp2(highest - floor)
        total = total * fade + tl.sum(weights, 1)
        result = tl.dot(weights.to(values.dtype), values, result * fade[:, None], input_precision="ieee")
        highest = new_highest

    value_mask = used[:, None] & (value_column < VALUE_WIDTH)[None, :]
    if shares > 1:
        place = (token * HEADS + head) * splits + split
        tl.store(partial_out + place[:, None] * VALUE_PADDED + value_column[None, :], result, value_mask)
        tl.store(partial_sums + place * 2, highest, used)
        tl.store(partial_sums + place * 2 + 1, total, used)
        return
    total = tl.where(used, total, 1.0)  # a row without a query may have seen no key
    place = (token * HEADS + head)[:, None] * VALUE_WIDTH + value_column[None, :]
    tl.store(out + place, (result / total[:, None]).to(out.dtype.element_ty), value_mask)


@triton.jit(do_not_specialize=["splits"])
def combine(
    out: tl.tensor,
    partial_out: tl.tensor,
    partial_sums: tl.tensor,
    splits: tl.tensor,
    HEADS: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    MOST_SPLITS: tl.constexpr,
) -> None:
    """Program (row, head): the partial softmaxes of one decode's head, weighed and written to `out` [T, H, Dv]."""
    place = tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)
    split = tl.arange(0, MOST_SPLITS)
    there = split < splits
    source = place * splits + split
    column = tl.arange(0, VALUE_PADDED)
    highest = tl.load(partial_sums + source * 2, there, float("-inf"))
    weights = tl.exp2(highest - tl.max(highest, 0))
    total = tl.sum(tl.load(partial_sums + source * 2 + 1, there, 0.0) * weights, 0)
    mask = there[:, None] & (column < VALUE_WIDTH)[None, :]
    parts = tl.load(partial_out + source[:, None] * VALUE_PADDED + column[None, :], mask, 0.0)
    result = tl.sum(parts * weights[:, None], 0) / total
    tl.store(out + place * VALUE_WIDTH + column, result.to(out.dtype.element_ty), column < VALUE_WIDTH)
