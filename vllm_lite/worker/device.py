"""The machine as the worker sees it: device, dtype, threads and free memory.

Process: worker. Knows: torch's devices, Linux' files about CPUs and memory. Does not know: the model, the KV cache.
Mirrors: vllm/platforms/cpu.py, vllm/platforms/cuda.py
"""

import ctypes
import gc
import os
from pathlib import Path

import torch

from vllm_lite.config.checks import refuse

CGROUP = Path("/sys/fs/cgroup")
# From glibc's malloc.h: parameter numbers of mallopt(), and what is set.
M_TRIM_THRESHOLD, KEPT_BYTES = -1, 512 << 20
M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES = -3, 32 << 20  # the most that glibc accepts
CPU_TOPOLOGY = Path("/sys/devices/system/cpu")


def select_device(name: str) -> torch.device:
    """The device that "auto", "cpu" or "cuda" means here. Raises VLLMValidationError for CUDA where there is none."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise refuse("device", name, "'cpu' or 'auto' on this machine, where torch finds no CUDA device")
    return torch.device(name)


def select_dtype(name: str, checkpoint_dtype: torch.dtype | None, device: torch.device) -> torch.dtype:
    """The dtype to compute in. "auto" is the checkpoint's own, but float32 on a CPU that would only emulate it."""
    if name != "auto":
        named: torch.dtype = getattr(torch, name)
        return named
    dtype = checkpoint_dtype or torch.float32
    if device.type == "cpu" and dtype.itemsize == 2 and not (dtype == torch.bfloat16 and bfloat16_is_native()):
        return torch.float32
    return dtype


def bfloat16_is_native() -> bool:
    """True where this CPU multiplies bfloat16 matrices in oneDNN."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def dtype_name(dtype: torch.dtype) -> str:
    """ "bfloat16" for torch.bfloat16: dtypes cross borders as strings."""
    return str(dtype).removeprefix("torch.")


def use_cpu_threads() -> int:
    """Let torch use the physical cores this process may run on but one, which is for the other processes of the engine.

    OMP_NUM_THREADS, where it is set, stands. A container's CPU quota counts like missing cores. Returns the number.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, _usable_cores() - 1))
    return torch.get_num_threads()


def keep_freed_memory() -> None:
    """Let the allocator of this process keep what tensors free. glibc would give each large block back to the operating system,
    to have it cleared when the next layer asks for as much: a fifth of the time of a long prompt. Other allocators stay as they
    are."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def give_memory_back(device: torch.device) -> None:
    """Return what this process has freed: to the GPU, or to the operating system, where `keep_freed_memory` would keep it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def collect_garbage() -> None:
    """Free what only cycles still hold, also among what was set aside as permanent when the process had started."""
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if frozen:
        gc.freeze()


def resident_memory() -> int:
    """Bytes of RAM this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _usable_cores() -> int:
    """Physical cores of this process' CPU affinity, or fewer where a cgroup quota says so."""
    siblings = set()
    for cpu in os.sched_getaffinity(0):
        file = CPU_TOPOLOGY / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        siblings.add(file.read_text() if file.exists() else str(cpu))
    quota = CGROUP / "cpu.max"
    limit, _, period = (quota.read_text() if quota.exists() else "max").partition(" ")
    return len(siblings) if limit == "max" else max(1, min(len(siblings), int(limit) // int(period)))


def free_memory(device: torch.device) -> int:
    """Bytes that could be taken now: of the GPU, or of the machine's RAM within a container's limit."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    limit = CGROUP / "memory.max"
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        free = min(free, int(text) - int((CGROUP / "memory.current").read_text()))
    return free
