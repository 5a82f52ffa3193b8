"""Linear layers for a CPU: weights as MKL or oneDNN like them best, and one product where several layers share an input.

Process: worker, CPU only. Knows: torch.nn.Linear, and the names that transformers' models give to layers fed with one tensor.
Does not know: what a layer is for.
Mirrors: vllm/model_executor/layers/utils.py (dispatch_cpu_unquantized_gemm), vllm/model_executor/layers/linear.py (its merged
layers)
"""

from collections.abc import Callable
from pathlib import Path

import torch

from vllm_lite.worker.device import bfloat16_is_native

Multiply = Callable[[torch.Tensor], torch.Tensor]
Pack = Callable[[torch.Tensor, torch.Tensor | None], Multiply]
# Called in this order with the same tensor.
SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
# MKL lays a weight out for the number of rows it is told. Any number may then come, and this layout is the best or near it for
# all: that for 32 rows is no better at 8, and takes a quarter longer at 200.
EXPECTED_ROWS = 1000


def mkl_is_quicker() -> bool:
    """True on Intel's CPUs: there MKL takes 8 to 15 % less time than oneDNN for 1 to 200 rows of float32. It is not known of
    others."""
    available: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return available and "GenuineIntel" in Path("/proc/cpuinfo").read_text()


def pack_for_mkl(weight: torch.Tensor, bias: torch.Tensor | None) -> Multiply:
    """x @ weight.T + bias by MKL, float32 alone."""
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, EXPECTED_ROWS)
    # The weight itself would be read only where the last argument is not the number of rows: a shape without memory will do.
    shape, width = weight.new_empty(1).expand(weight.shape), weight.shape[1]
    linear = torch.ops.mkl._mkl_linear.default  # found once: a step asks for it hundreds of times
    return lambda x: linear(x, packed, shape, bias, x.numel() // width)


def pack_for_onednn(weight: torch.Tensor, bias: torch.Tensor | None) -> Multiply:
    """x @ weight.T + bias by oneDNN."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    linear = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: linear(x, packed, bias, "none", [], "")


class PackedProduct:
    """The weights of several linears with one input, reordered for good: x [..., in] to each one's [..., out].

    The first linear asked computes all; the others find their part as long as they are asked with the very same tensor.
    """

    def __init__(self, linears: list[torch.nn.Linear], pack: Pack) -> None:
        self._sizes = [linear.out_features for linear in linears]
        weight = torch.cat([linear.weight.detach() for linear in linears])
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self._multiply = pack(weight, torch.cat(biases) if biases else None)
        self._x: torch.Tensor | None = None
        self._parts: tuple[torch.Tensor, ...] = ()

    def part(self, x: torch.Tensor, index: int) -> torch.Tensor:
        """What linear number `index` makes of `x`."""
        if x is not self._x:
            out = self._multiply(x)
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


def prepack_linears(model: torch.nn.Module, *, compiled: bool = False) -> None:
    """Replace every plain Linear of `model` that can be packed. MKL's products would be compiled anew for each number of rows.

    A weight that is shared (a tied output projection) is packed as a copy; the others free their original. Subclasses of Linear
    may compute something else and are left alone.
    """
    packs: dict[torch.dtype, Pack] = {}
    if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        packs[torch.float32] = pack_for_mkl if mkl_is_quicker() and not compiled else pack_for_onednn
        if bfloat16_is_native():
            packs[torch.bfloat16] = pack_for_onednn
    for parent in list(model.modules()):
        linears = {
            name: child
            for name, child in parent.named_children()
            if type(child) is torch.nn.Linear and child.weight.dtype in packs
        }
        for names in _groups(linears):
            product = PackedProduct([linears[name] for name in names], packs[linears[names[0]].weight.dtype])
            for index, name in enumerate(names):
                setattr(parent, name, PrepackedLinear(linears[name], product, index))


def _groups(linears: dict[str, torch.nn.Linear]) -> list[tuple[str, ...]]:
    """The names in `linears`, siblings together where they fit: the same input width, all with a bias or all without."""
    groups: list[tuple[str, ...]] = []
    for names in SIBLINGS:
        found = [linears[name] for name in names if name in linears]
        if len(found) == len(names) and len({(linear.in_features, linear.bias is None) for linear in found}) == 1:
            groups.append(names)
    together = {name for names in groups for name in names}
    return groups + [(name,) for name in linears if name not in together]
