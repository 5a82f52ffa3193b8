"""RMSNorm for a CPU: the arithmetic of transformers' own modules in half as many kernels.

Process: worker, CPU only. Knows: how RMSNorm modules name their weight and epsilon. Does not know: where in a model they stand.
After each large weight that was read, code is no longer in the CPU's cache either: a kernel that runs for 2 us when it is warm
takes 10 us then, and a decode step is full of such kernels.
Mirrors: vllm/model_executor/layers/layernorm.py (RMSNorm)
"""

import inspect

import torch

# Up to so many bytes the time goes into the number of kernels, beyond into reading and writing.
SMALL_BYTES = 40 << 10


class RowNorm(torch.nn.Module):
    """Stands in for an RMSNorm that multiplies by its weight after rounding: weight * (x / sqrt(mean(x * x) + eps))."""

    def __init__(self, weight: torch.nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight, self._eps = weight, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., n], normalised over its last dimension. Without the ceremony of a module's call, as in PrepackedLinear."""
        width = x.shape[-1]
        if x.nbytes <= SMALL_BYTES:  # x beside -x has mean 0, and so the mean of its squares as variance
            both = torch.layer_norm(torch.cat((x, -x), dim=-1), (2 * width,), None, None, self._eps)
            return both[..., :width] * self.weight
        rows = x.reshape(1, -1, width)  # a batch normalisation of known mean and variance, with rows in the place of channels
        variance = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float32)[0].square_().mul_(1 / width)
        mean = torch.zeros_like(variance)
        return torch.batch_norm(rows, None, None, mean, variance, False, 0.0, self._eps, False).view(x.shape).mul_(self.weight)


@torch.inference_mode()
def replace_norms(model: torch.nn.Module) -> None:
    """Put a RowNorm in the place of every RMSNorm of `model` that it agrees with on random numbers."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            candidate = _candidate(child) if type(child).__name__.endswith("RMSNorm") else None
            if candidate is not None and _agree(child, candidate):
                setattr(parent, name, candidate)


def _candidate(norm: torch.nn.Module) -> RowNorm | None:
    """None for a norm that takes more than a tensor, or has no weight or epsilon of its own."""
    weight, eps = getattr(norm, "weight", None), getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if not isinstance(weight, torch.nn.Parameter) or not isinstance(eps, float):
        return None
    alone = weight.dim() == 1 and len(inspect.signature(norm.forward).parameters) == 1
    return RowNorm(weight, eps) if alone else None


def _agree(norm: torch.nn.Module, candidate: RowNorm) -> bool:
    """True where results are equal but for the last bit of some: modules that round elsewhere differ in many."""
    weight = candidate.weight
    if weight.dtype not in (torch.float32, torch.bfloat16):
        return False
    generator, width = torch.Generator().manual_seed(0), weight.shape[0]
    for rows in (1, SMALL_BYTES // (width * weight.dtype.itemsize) + 1):
        sizes = torch.logspace(-3, 2, rows)[:, None]  # the smallest is such that epsilon shows
        x = (torch.randn(1, rows, width, generator=generator) * sizes).to(weight.dtype)
        ours, theirs = candidate(x).float(), norm(x).float()
        if not (ours - theirs).abs().mean() < 1e-5 * theirs.abs().mean():
            return False
    return True
