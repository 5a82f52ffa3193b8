"""A model's modules called with less ceremony, and rotary embedding in half as many kernels.

Process: worker, CPU only. Knows: which wrappers transformers puts around `forward` that do nothing here, and how its attention
modules rotate queries and keys. Does not know: any architecture by name.
On a CPU a decode step of a small model spends a quarter of its time between kernels, in Python.
Mirrors: vllm/model_executor/layers/rotary_embedding/ (for the second half)
"""

import types
from typing import Any

import torch
from transformers import PreTrainedModel

# Whose wrappers are taken off: they look for old keywords, and for gradients.
CEREMONY = {"transformers.utils.deprecation", "transformers.modeling_layers"}
ROTARY = "apply_rotary_pos_emb"


@torch.inference_mode()
def call_directly(model: torch.nn.Module) -> int:
    """Let all below `model` be called without hooks and wrappers. Returns how many layers rotate in fewer kernels.

    Models as such keep theirs: they fill in defaults, and the last hidden states are read by a hook.
    """
    classes: dict[type, type] = {}
    rotating = 0
    for module in list(model.modules()):
        module.__dict__.update(module._modules | module._parameters)  # found at once, not by a search in Module.__getattr__
        kind: Any = type(module)
        special = module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
        if isinstance(module, PreTrainedModel) or kind.__call__ is not torch.nn.Module.__call__ or special:
            continue
        if kind not in classes:
            classes[kind] = type(kind.__name__, (kind,), {"__call__": _lean(kind.forward, model)})
        module.__class__ = classes[kind]
        rotating += isinstance(getattr(classes[kind].__call__, "__globals__", {}).get(ROTARY), FewerKernels)
    return rotating


def _lean(forward: Any, model: Any) -> Any:
    """`forward` itself without its wrappers; one that rotates has its own view of the function that does so."""
    while getattr(forward, "__globals__", {}).get("__name__") in CEREMONY and hasattr(forward, "__wrapped__"):
        forward = forward.__wrapped__
    if not isinstance(forward, types.FunctionType) or ROTARY not in forward.__code__.co_names:
        return forward
    rotate = FewerKernels(forward.__globals__.get(ROTARY))
    if not rotate.agrees(model.dtype):
        return forward
    names = forward.__globals__ | {ROTARY: rotate}
    lean = types.FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    lean.__kwdefaults__ = forward.__kwdefaults__
    return lean


class FewerKernels:
    """Stands in for a function that gives x * cos + cat(-x2, x1) * sin for x = cat(x1, x2), the same bits for queries and keys
    together. `cos` and `sin` are made ready by the first layer that uses them."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, cos: Any, sin: torch.Tensor, *args: Any, **keywords: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`q` [1, H, T, D] and `k` [1, Hkv, T, D], rotated; `cos` and `sin` [1, T, D]."""
        if args or keywords or q.shape[-1] != cos.shape[-1] or q.dtype != cos.dtype:
            rotated: tuple[torch.Tensor, torch.Tensor] = self._original(q, k, cos, sin, *args, **keywords)
            return rotated
        half, heads = q.shape[-1] // 2, q.shape[1]
        ready = getattr(cos, "ready", None)
        if ready is None:
            signed = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
            ready = cos.ready = (cos.unsqueeze(1), signed.unsqueeze(1))
        x = _side_by_side(q, k)
        swapped = torch.cat((x, x), dim=-1).narrow(-1, half, 2 * half)  # cat(x2, x1)
        out = (x * ready[0]).add_(swapped.mul_(ready[1]))
        return out.narrow(1, 0, heads), out.narrow(1, heads, k.shape[1])

    def agrees(self, dtype: torch.dtype) -> bool:
        """True where the original gives the same bits."""
        generator = torch.Generator().manual_seed(0)
        parts = [torch.randn(1, count, 7, 64, generator=generator).to(dtype) for count in (3, 2, 1, 1)]
        q, k, cos, sin = parts[0], parts[1], parts[2][:, 0], parts[3][:, 0]
        try:
            expected = self._original(q, k, cos, sin)
            return all(torch.equal(ours, theirs) for ours, theirs in zip(self(q, k, cos, sin), expected, strict=True))
        except (TypeError, ValueError, RuntimeError):  # it takes something else
            return False


def _side_by_side(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """[1, H + Hkv, T, D], without a copy where one product has made both. (Strides of a lone token's T say nothing.)"""
    heads, strides = q.shape[1], q.stride()
    alike = strides[1] == k.stride(1) and strides[3] == k.stride(3) and (q.shape[2] == 1 or strides[2] == k.stride(2))
    if alike and k.data_ptr() == q.data_ptr() + heads * strides[1] * q.element_size():
        return q.as_strided((1, heads + k.shape[1], *q.shape[2:]), strides)
    return torch.cat((q, k), dim=1)
