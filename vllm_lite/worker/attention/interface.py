"""Where stock models meet the paged cache: one function in transformers' attention registry, and what it finds on the module.

Process: worker. Knows: how transformers calls an attention function; the KV cache of one layer. Does not know: the batch, the
model's architecture. Everything hangs on the attention module itself (`module.paged`), so two engines can live in one process.
Mirrors: vllm/model_executor/models/transformers/base.py (vllm_flash_attention_forward), vllm/v1/attention/backend.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from vllm_lite.wire.kv_cache_interface import FullAttentionSpec
from vllm_lite.worker.attention.metadata import AttentionMetadata

ATTENTION_NAME = "vllm_lite_paged"


class AttentionBackend(ABC):
    """Computes attention over the paged cache. One instance for each engine; it holds the running step's metadata."""

    name: str
    capturable: bool = False  # a CUDA graph may hold its launches, and torch.compile its call

    @abstractmethod
    def allocate(self, spec: FullAttentionSpec, num_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's key and value cache, all zero, in the order this backend likes."""

    @abstractmethod
    def begin_step(self, metadata: AttentionMetadata) -> None:
        """Take the step's metadata; what all layers share is worked out once, here or at the first layer that needs it."""

    @abstractmethod
    def attend(self, layer: PagedLayer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Write the step's keys [Hkv, T, D] and values [Hkv, T, Dv], then attend with query [H, T, D]; returns [T, H, Dv].

        All writes come before any read: sequences of one step may share blocks that only this step fills.
        """


@dataclass(slots=True, eq=False)
class PagedLayer:
    """One attention layer's cache and the shape of its attention. `sinks` [H] is an extra column of the softmax."""

    backend: AttentionBackend
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    sliding_window: int | None
    softcap: float | None
    scaling: float = 1.0
    sinks: torch.Tensor | None = None

    @property
    def plain(self) -> bool:
        """True where softmax(query @ keys) @ values is all there is to it."""
        return self.softcap is None and self.sinks is None

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: object = None,
        *,
        scaling: float | None = None,
        s_aux: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Attention of one step, [1, H, T, D] in, [1, T, H, Dv] out. Other keywords were judged once, by the probe."""
        self.scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        self.sinks = s_aux
        return self.backend.attend(self, query[0], key[0], value[0])[None]


def paged_attention(module: torch.nn.Module, *args: Any, **keywords: Any) -> tuple[torch.Tensor, None]:
    """The function transformers calls for each layer: hand over to whatever hangs on the module."""
    return module.paged(*args, **keywords), None  # type: ignore[operator]


# Only the attention registry, not the one for masks: then transformers builds no mask at all.
AttentionInterface.register(ATTENTION_NAME, paged_attention)
