"""How hidden states become one vector.

Process: all. Knows: values. Does not know: the model.
Mirrors: vllm/pooling_params.py
"""

from __future__ import annotations

import msgspec

from vllm_lite.config.checks import check_bool, check_choice, refuse
from vllm_lite.sampling_params import RequestOutputKind


class PoolingParams(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Parameters of one `encode()` request: `pooling_type` "last", "mean" or "cls"; `normalize` to unit length."""

    task: str = "embed"
    pooling_type: str = "last"
    normalize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY

    def __post_init__(self) -> None:
        check_choice("task", self.task, ("embed",))
        check_choice("pooling_type", self.pooling_type, ("last", "mean", "cls"))
        check_bool("normalize", self.normalize)
        if self.output_kind is not RequestOutputKind.FINAL_ONLY:
            raise refuse("output_kind", self.output_kind, "RequestOutputKind.FINAL_ONLY: a vector is one output")

    def clone(self) -> PoolingParams:
        """An independent copy."""
        return msgspec.structs.replace(self)
