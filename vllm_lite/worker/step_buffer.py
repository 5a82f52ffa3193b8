"""A step's small arrays on their way to the device: one persistent buffer there, one copy for all of them.

Process: worker. Knows: numpy arrays and one device. Does not know: what the arrays mean.
Where an array lands depends on the sizes of those before it and on nothing else. So steps of equal sizes find their inputs at
equal addresses, which is what the replay of a CUDA graph needs; an array whose size varies all the same must come last.
Mirrors: vllm/v1/utils.py (CpuGpuBuffer)
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

ALIGNMENT = 16  # bytes; Triton compiles a kernel once more for pointers that are aligned worse


class StepBuffer:
    """Room for `size` numbers of one `dtype`.

    On a GPU the numbers are written into pinned memory and copied while the host goes on. There are two such stagings, used in
    turn: before one is written again, the copy of the step before last is waited for, and that is long done.
    """

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.tensor = torch.zeros(size, dtype=dtype, device=device)
        self._numbers_apart = ALIGNMENT // dtype.itemsize
        self._turn = 0
        self._stagings = [self.tensor]  # on the CPU there is nothing to copy
        self._copied: list[torch.cuda.Event] = []
        if device.type == "cuda":
            self._stagings = [torch.zeros(size, dtype=dtype, pin_memory=True) for _ in range(2)]
            self._copied = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        self._hosts: list[npt.NDArray[Any]] = [staging.numpy() for staging in self._stagings]

    def upload(self, *arrays: npt.NDArray[Any]) -> list[int]:
        """Send `arrays` in this order, converted to the buffer's dtype. Returns where each begins in `tensor`, in numbers."""
        self._turn = (self._turn + 1) % len(self._stagings)
        host = self._hosts[self._turn]
        if self._copied:
            self._copied[self._turn].synchronize()
        offsets, end = [], 0
        for array in arrays:
            host[end : end + array.size].reshape(array.shape)[...] = array
            offsets.append(end)
            used = end + array.size
            end = -(-used // self._numbers_apart) * self._numbers_apart
        if self._copied:
            self.tensor[:used].copy_(self._stagings[self._turn][:used], non_blocking=True)
            self._copied[self._turn].record()
        return offsets

    def views(self, *arrays: npt.NDArray[Any]) -> list[torch.Tensor]:
        """`upload`, and each array as a tensor of its shape on the device, good until the next upload."""
        offsets = self.upload(*arrays)
        return [self.tensor[at : at + array.size].view(array.shape) for at, array in zip(offsets, arrays, strict=True)]


def upload(array: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """A tensor of its own on `device`, for what only some steps need; the host does not wait for the copy."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()  # from a cache of pinned memory, which keeps it until the copy is done
    return tensor.to(device, non_blocking=True)
