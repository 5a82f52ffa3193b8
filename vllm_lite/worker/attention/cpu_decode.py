"""Decode attention on a CPU: keys and values are read where they lie in the paged cache, without a gather, a mask or padding.

Process: worker, CPU only; the one module that imports numba. Knows: one step's metadata, addresses and strides. Does not know:
prompts, models. Numbers are taken in pairs, a word each: two bfloat16 become float32 by a shift and a mask.
Mirrors: csrc/cpu/cpu_attn.cpp
"""

import functools
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import torch
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from vllm_lite.worker.attention.interface import PagedLayer
from vllm_lite.worker.attention.metadata import AttentionMetadata

ir, f32, u32, u64 = cgutils.ir, np.float32, np.uint32, np.uint64
WORTH_A_THREAD = 500_000  # pairs of numbers multiplied: a sixth of a millisecond
TILE = 8  # tokens turned into float32 at once, while the next ones come into the cache
SIGNATURE = types.void(types.UniTuple(types.int64, 28), types.float32, types.float32)
FAST = {"reassoc", "contract", "nsz", "arcp"}  # all but what lets a compiler believe that no number is NaN or infinite


@intrinsic
def pointer(_: Any, address: Any, kind: Any) -> Any:
    """An address as a pointer to numbers of a kind: without bounds and negative indices, which keep a loop from vectors."""
    target = types.CPointer(kind.instance_type)
    return target(address, kind), lambda context, builder, _, args: builder.inttoptr(args[0], context.get_value_type(target))


@intrinsic(prefer_literal=True)
def on_stack(_: Any, count: Any) -> Any:
    """Room for so many float32 to which, as the compiler can see, nothing else points."""
    size = ir.Constant(ir.IntType(64), count.literal_value)
    return types.CPointer(types.float32)(count), lambda _, builder, *__: cgutils.alloca_once(builder, ir.FloatType(), size)


@intrinsic
def prefetch(_: Any, address: Any) -> Any:
    """Ask for the memory at an address, to have it in the first cache when it is read."""

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        place, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [place], kind)
        builder.call(function, [builder.inttoptr(args[0], place), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(address), generate


@register_jitable
def split(word: Any, half: bool) -> Any:
    """A pair as float32: from a bfloat16 `half`, or a float32, each."""
    if half:
        return u32(word << u32(16)).view(f32), u32(word & u32(0xFFFF0000)).view(f32)
    return u32(word & u64(0xFFFFFFFF)).view(f32), u32(word >> u64(32)).view(f32)


@register_jitable
def join(low: Any, high: Any, half: bool) -> Any:
    """The word that `split` takes apart, rounded to nearest, ties to even."""
    a, b = f32(low).view(u32), f32(high).view(u32)
    if half:
        return u64((a + 0x7FFF + ((a >> 16) & 1)) >> 16) & u64(0xFFFF) | u64(b + 0x7FFF + ((b >> 16) & 1)) & u64(0xFFFF0000)
    return u64(a) | u64(b) << u64(32)


@njit(fastmath={"contract"})
def exp(x: Any) -> Any:
    """e**x for x <= 0, as in Cephes' expf (https://www.netlib.org/cephes): numba's own takes one number at a time."""
    x = f32(-87) if x < f32(-87) else x
    n = np.floor(x * f32(1.44269504088896341) + f32(0.5))
    x = x - n * f32(0.693359375) + n * f32(2.12194440e-4)
    y = (f32(1.9875691500e-4) * x + f32(1.3981999507e-3)) * x + f32(8.3334519073e-3)
    y = ((y * x + f32(4.1665795894e-2)) * x + f32(1.6666665459e-1)) * x + f32(5.0000001201e-1)
    return (y * x * x + x + f32(1)) * np.int32((np.int32(n) + 127) << 23).view(f32)


@njit(fastmath=FAST)
def weigh(s: Any, count: int, top: Any, cap: Any, sink: Any) -> Any:
    """Scores into what softmax takes before it divides by their sum, which is returned. `top`: the largest."""
    if cap > 0:
        for i in range(count):
            s[i] = cap * np.tanh(s[i] / cap)
        top = cap * np.tanh(top / cap)
    top = max(top, sink)
    total = exp(sink - top)
    for i in range(count):
        s[i] = exp(s[i] - top)
        total += s[i]
    return total


@functools.cache
def kernel(word: Any, width: int, width_v: int, group: int) -> Any:
    """The kernel for keys and values of so many pairs, and `group` query heads for each: constants let loops be fast."""
    half, size = word is u32, np.dtype(word).itemsize
    rows, rows_v, tile, tile_v = group * width, group * width_v, TILE * width, TILE * width_v

    def run(numbers: Any, scale: Any, cap: Any) -> None:
        stores, first, last, scores_, heads, window, columns, block, slots_, ends_, table_, sinks_, out_ = numbers[:13]
        q_, qh, qt, k_, kh, kt, v_, vh, vt, kc_, kch, kct, vc_, vch, vct = numbers[13:]
        q, k, v, kc, vc = pointer(q_, word), pointer(k_, word), pointer(v_, word), pointer(kc_, word), pointer(vc_, word)
        slots, ends, table = pointer(slots_, np.int64), pointer(ends_, np.int64), pointer(table_, np.int64)
        sinks, out = pointer(sinks_, f32), pointer(out_, word)
        low, high, low_v, high_v, top = on_stack(tile), on_stack(tile), on_stack(tile_v), on_stack(tile_v), on_stack(group)
        q_low, q_high, sum_low, sum_high = on_stack(rows), on_stack(rows), on_stack(rows_v), on_stack(rows_v)
        for t in range(stores):
            for h in range(heads):
                for d in range(width):
                    kc[h * kch + slots[t] * kct + d] = k[h * kh + t * kt + d]
                for d in range(width_v):
                    vc[h * vch + slots[t] * vct + d] = v[h * vh + t * vt + d]
        for item in range(first, last):
            b, h, end = item // heads, item % heads, ends[item // heads]
            start = max(0, end - window)
            row = 4 * (end - start + TILE)  # bytes of a query head's scores
            for r in range(group):
                top[r] = f32(-3e38)
                for d in range(width):
                    x, y = split(q[(h * group + r) * qh + b * qt + d], half)
                    q_low[r * width + d], q_high[r * width + d] = x * scale, y * scale
            p = start
            while p < end:
                n, slot = min(block - p % block, end - p, TILE), table[b * columns + p // block] * block + p % block
                for i in range(0, n * width_v * size, 64):
                    prefetch(vc_ + (h * vch + slot * vct) * size + i)
                for d in range(n * width):
                    low[d], high[d] = split(kc[h * kch + slot * kct + d], half)
                for r in range(group):
                    s, most = pointer(scores_ + r * row + 4 * (p - start), f32), top[r]
                    for i in range(n):
                        x = f32(0)
                        for d in range(width):
                            x += q_low[r * width + d] * low[i * width + d] + q_high[r * width + d] * high[i * width + d]
                        s[i] = x
                        most = x if x > most else most
                    top[r] = most
                p += n
            for r in range(group):
                s, sink = pointer(scores_ + r * row, f32), sinks[h * group + r] if sinks_ else f32(-3e38)
                top[r] = f32(1) / weigh(s, end - start, top[r], cap, sink)
                for i in range(end - start, end - start + TILE):
                    s[i] = f32(0)
            for d in range(rows_v):
                sum_low[d] = sum_high[d] = f32(0)
            p = start
            while p < end:
                n, slot = min(block - p % block, end - p, TILE), table[b * columns + p // block] * block + p % block
                for i in range(0, n * width * size, 64):
                    prefetch(kc_ + ((h + 1) * kch + slot * kct) * size + i)
                for d in range(n * width_v):
                    low_v[d], high_v[d] = split(vc[h * vch + slot * vct + d], half)
                for d in range(n * width_v, tile_v):
                    low_v[d] = high_v[d] = f32(0)
                for r in range(group):
                    s, a = pointer(scores_ + r * row + 4 * (p - start), f32), r * width_v
                    for d in range(width_v):
                        x, y = sum_low[a + d], sum_high[a + d]
                        for i in range(TILE):
                            x += s[i] * low_v[i * width_v + d]
                            y += s[i] * high_v[i * width_v + d]
                        sum_low[a + d], sum_high[a + d] = x, y
                p += n
            for r in range(group):
                for d in range(r * width_v, (r + 1) * width_v):
                    out[item * rows_v + d] = join(sum_low[d] * top[r], sum_high[d] * top[r], half)

    # A name and so a file of its own: of two that processes add to one file at once, numba may load either for the other.
    run.__qualname__ = f"decode_{np.dtype(word)}_{width}_{width_v}_{group}"
    options = {"nogil": True, "error_model": "numpy", "fastmath": FAST}
    try:
        return njit(SIGNATURE, cache=True, **options)(run)
    except Exception:  # there is no folder to keep it in, no room, or the file is damaged
        return njit(SIGNATURE, **options)(run)


class CpuDecode:
    """The decodes of an engine's steps, on as many threads as torch uses. (Two engines at once would break numba's own.)"""

    def __init__(self, dtype: torch.dtype) -> None:
        self._word = u64 if dtype == torch.float32 else u32
        self._threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._threads, "attention")

    def begin_step(self, metadata: AttentionMetadata) -> None:
        """Take the step's metadata."""
        self._arrays = [np.ascontiguousarray(a) for a in (metadata.slot_mapping, metadata.seq_lens, metadata.block_table)]
        self._shared = metadata.block_table.shape[1], metadata.block_size, *(a.ctypes.data for a in self._arrays)
        self._decodes, self._longest = metadata.num_decodes, int(metadata.seq_lens[: metadata.num_decodes].max(initial=0))

    def __call__(self, layer: PagedLayer, out: torch.Tensor, *step: torch.Tensor) -> None:
        """Take query, key and value as `AttentionBackend.attend` does, and fill in the decodes' part of `out` [T, H, Dv]."""
        assert {x.dtype for x in step} == {layer.key_cache.dtype}
        rows = [x if x.stride(2) == 1 and not (x.stride(0) | x.stride(1)) & 1 else x.contiguous() for x in step]
        rows += [layer.key_cache, layer.value_cache]
        (heads, tokens, width), group = rows[1].shape, len(rows[0]) // len(rows[1])
        window, items = min(layer.sliding_window or self._longest, self._longest), heads * self._decodes
        parts = max(1, min(self._threads, items, items * window * width * group // WORTH_A_THREAD))
        room = 4 * group * (window + TILE)  # bytes of scores that a thread needs
        scores = torch.empty(parts * room, dtype=torch.uint8)
        sinks = None if layer.sinks is None else layer.sinks.float()
        places = [0 if sinks is None else sinks.data_ptr(), out.data_ptr()]
        places += [n for x in rows for n in (x.data_ptr(), x.stride(0) // 2, x.stride(1) // 2)]
        run = kernel(self._word, width // 2, out.shape[2] // 2, group)

        def work(first: int, last: int, part: int = 0, stores: int = 0) -> None:
            numbers = (stores, first, last, scores.data_ptr() + part * room, heads, window, *self._shared, *places)
            run(numbers, layer.scaling, layer.softcap or 0.0)

        work(0, items if parts == 1 else 0, stores=tokens)  # all are written before any is read
        if parts > 1:
            ends, jobs = [items * part // parts for part in range(parts + 1)], list[Future[None]]()
            try:
                jobs.extend(self._pool.submit(work, ends[part], ends[part + 1], part) for part in range(parts))
                for job in jobs:
                    job.result()
            except BaseException:  # Ctrl-C perhaps: what the threads read and write must be there until they are done
                wait(jobs)
                raise
