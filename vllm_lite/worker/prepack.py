"""Linear layers for a CPU: weights as oneDNN likes them best, and one product where several layers share an input.

Process: worker, CPU only. Knows: torch.nn.Linear, and the names that transformers' models give to layers fed with one tensor.
Does not know: what a layer is for.
Mirrors: vllm/model_executor/layers/utils.py (dispatch_cpu_unquantized_gemm), vllm/model_executor/layers/linear.py (its merged
layers)
"""

from __future__ import annotations

import torch

from vllm_lite.worker.device import bfloat16_is_native

# Called in this order with the same tensor.
SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class PackedProduct:
    """The weights of several linears with one input, reordered for good: x [..., in] to each one's [..., out].

    The first linear asked computes all; the others find their part as long as they are asked with the very same tensor.
    """

    def __init__(self, linears: list[torch.nn.Linear]) -> None:
        self._sizes = [linear.out_features for linear in linears]
        self._packed = torch.ops.mkldnn._reorder_linear_weight(torch.cat([linear.weight.detach() for linear in linears]))
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self._bias = torch.cat(biases) if biases else None
        self._linear = torch.ops.mkldnn._linear_pointwise.default  # found once: a step asks for it hundreds of times
        self._x: torch.Tensor | None = None
        self._parts: tuple[torch.Tensor, ...] = ()

    def part(self, x: torch.Tensor, index: int) -> torch.Tensor:
        """What linear number `index` makes of `x`."""
        if x is not self._x:
            out: torch.Tensor = self._linear(x, self._packed, self._bias, "none", [], "")
            if len(self._sizes) == 1:
                return out
            self._x, self._parts = x, torch.split_with_sizes(out, self._sizes, -1)
        part = self._parts[index]
        if index == len(self._sizes) - 1:  # nobody comes after it, and a prompt's activations are large
            self._x, self._parts = None, ()
        return part


class PrepackedLinear(torch.nn.Module):
    """Stands in for a Linear, whose weight is no longer a parameter. `packed_bytes`: the size of that weight."""

    def __init__(self, linear: torch.nn.Linear, product: PackedProduct, index: int) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed_bytes = linear.weight.nbytes
        self._product, self._index = product, index

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x @ weight.T + bias. Without the ceremony of a module's call: nobody hangs hooks on it."""
        return self._product.part(x, self._index)


def prepack_linears(model: torch.nn.Module) -> int:
    """Replace every plain Linear of `model` that oneDNN can pack; returns how many.

    A weight that is shared (a tied output projection) is packed as a copy; the others free their original. Subclasses of Linear
    may compute something else and are left alone.
    """
    packable = {torch.float32} if torch.backends.mkldnn.is_available() else set()  # type: ignore[no-untyped-call]
    if packable and bfloat16_is_native():
        packable.add(torch.bfloat16)
    count = 0
    for parent in list(model.modules()):
        linears = {
            name: child
            for name, child in parent.named_children()
            if type(child) is torch.nn.Linear and child.weight.dtype in packable
        }
        for names in _groups(linears):
            product = PackedProduct([linears[name] for name in names])
            for index, name in enumerate(names):
                setattr(parent, name, PrepackedLinear(linears[name], product, index))
        count += len(linears)
    return count


def _groups(linears: dict[str, torch.nn.Linear]) -> list[tuple[str, ...]]:
    """The names in `linears`, siblings together where they fit: the same input width, all with a bias or all without."""
    groups: list[tuple[str, ...]] = []
    for names in SIBLINGS:
        found = [linears[name] for name in names if name in linears]
        if len(found) == len(names) and len({(linear.in_features, linear.bias is None) for linear in found}) == 1:
            groups.append(names)
    together = {name for names in groups for name in names}
    return groups + [(name,) for name in linears if name not in together]
