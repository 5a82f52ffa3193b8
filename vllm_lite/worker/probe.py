"""What a stock model needs from the KV cache, found by running two tokens through it; and every reason not to serve it.

Process: worker. Knows: how transformers' decoder models call their attention, and where their results would go silently wrong
on a flat batch over a paged cache. Does not know: any architecture by name.
Mirrors: nothing in vLLM (it traces the model's code instead: vllm/model_executor/models/transformers/).
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from vllm_lite.exceptions import UnsupportedModelError

# Keywords that change nothing here: decided by the batch itself, or only say what to return besides the result.
HARMLESS = {
    "dropout",
    "is_causal",
    "position_ids",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "logits_to_keep",
    "cache_position",
    "return_dict",
}
UNDERSTOOD = {"scaling", "sliding_window", "softcap", "s_aux"}


@dataclass(slots=True)
class AttentionCall:
    """What one attention layer passed: its module, shapes ([1, heads, tokens, width]) and keywords."""

    module: torch.nn.Module
    num_kv_heads: int
    head_size: int
    head_size_v: int
    sliding_window: int | None
    softcap: float | None
    has_mask: bool
    keywords: dict[str, Any]
    num_heads: int


class ProbeLayer:
    """Hangs where a PagedLayer will hang, notes the call and answers zeros."""

    def __init__(self, name: str, module: torch.nn.Module, calls: list[tuple[str, AttentionCall]]) -> None:
        self._name, self._module, self._calls = name, module, calls

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any = None, **keywords: Any
    ) -> torch.Tensor:
        """Zeros of the right shape, [1, T, H, Dv]."""
        call = AttentionCall(
            module=self._module,
            num_kv_heads=key.shape[1],
            head_size=key.shape[3],
            head_size_v=value.shape[3],
            sliding_window=keywords.get("sliding_window"),
            softcap=keywords.get("softcap"),
            has_mask=attention_mask is not None,
            keywords=keywords,
            num_heads=query.shape[1],
        )
        self._calls.append((self._name, call))
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3])


@contextlib.contextmanager
def attention_noted(model: torch.nn.Module) -> Iterator[list[tuple[str, AttentionCall]]]:
    """Within this context a forward pass needs no KV cache; the list fills with (module name, call) in order of calls."""
    calls: list[tuple[str, AttentionCall]] = []
    modules = list(model.named_modules())
    for name, module in modules:
        module.paged = ProbeLayer(name, module, calls)
    try:
        yield calls
    finally:
        for _, module in modules:
            del module.paged


def check_config(config: Any, max_model_len: int) -> None:
    """Refuse what the configuration alone gives away, before any weight is read. Raises UnsupportedModelError."""
    kind = config.model_type
    if config.is_encoder_decoder:
        raise UnsupportedModelError(f"{kind} is an encoder-decoder model; only decoder models are served")
    if config.get_text_config() is not config:
        raise UnsupportedModelError(f"{kind} is a multimodal model; give --model its text model alone")
    if getattr(config, "quantization_config", None) is not None:
        raise UnsupportedModelError(f"the weights of this {kind} are quantised; give --model an unquantised copy")
    if getattr(config, "num_kv_shared_layers", None):
        raise UnsupportedModelError(f"layers of {kind} share their keys and values, which the paged cache cannot express")
    for layer_type in sorted(set(getattr(config, "layer_types", None) or [])):
        _check_layer_type(config, layer_type, max_model_len)
    _check_rope(config, max_model_len)


def _check_layer_type(config: Any, layer_type: str, max_model_len: int) -> None:
    if layer_type == "chunked_attention":
        chunk = config.attention_chunk_size
        if max_model_len > chunk:
            raise UnsupportedModelError(
                f"{config.model_type} attends within chunks of {chunk} tokens, and that boundary lives only in a mask: "
                f"set --max-model-len to at most {chunk}"
            )
    elif layer_type not in ("full_attention", "sliding_attention"):
        raise UnsupportedModelError(
            f"{config.model_type} has layers of type {layer_type!r}, whose state is not keys and values; only full and sliding "
            "attention are served"
        )


def _check_rope(config: Any, max_model_len: int) -> None:
    """LongRoPE changes its frequencies with the longest position of the batch, so one request would change the others. (Dynamic
    RoPE does so too, but only beyond max_position_embeddings, where no request gets.)"""
    parameters = getattr(config, "rope_parameters", None) or {}
    for rope in (parameters, *(value for value in parameters.values() if isinstance(value, dict))):
        if rope.get("rope_type") != "longrope":
            continue
        limit = rope["original_max_position_embeddings"]
        if max_model_len > limit:
            raise UnsupportedModelError(
                f"{config.model_type} has position embeddings that change for the whole batch once one request passes {limit} "
                f"tokens: set --max-model-len to at most {limit}"
            )


@torch.inference_mode()
def probe_model(model: Any, max_model_len: int) -> dict[str, AttentionCall]:
    """Each attention layer's call by module name, from a forward pass of two tokens. Raises UnsupportedModelError."""
    config = model.config
    device = model.get_input_embeddings().weight.device
    tokens = torch.zeros(1, 2, dtype=torch.int64, device=device)
    positions = torch.arange(2, device=device)
    with attention_noted(model) as calls:
        try:
            logits = model(tokens, position_ids=positions[None], use_cache=False, logits_to_keep=positions[1:]).logits
        except TypeError as error:
            raise UnsupportedModelError(f"{config.model_type} does not take a flat batch of positions ({error})") from error
    layers = dict(calls)
    if len(calls) != config.num_hidden_layers or len(layers) != len(calls):
        raise UnsupportedModelError(
            f"{len(layers)} of the {config.num_hidden_layers} layers of {config.model_type} take part in transformers' "
            "attention interface, each of them should exactly once: the others keep state that is not keys and values, or "
            "compute attention by themselves"
        )
    if logits.shape[1] != 1:
        raise UnsupportedModelError(f"{config.model_type} cannot be asked for the logits of chosen positions (logits_to_keep)")
    for index, call in enumerate(layers.values()):
        _check_call(config, call)
        call.sliding_window = _window(config, call, index, max_model_len)
    return layers


def _check_call(config: Any, call: AttentionCall) -> None:
    causal = call.keywords.get("is_causal")
    if not (getattr(call.module, "is_causal", True) if causal is None else causal):
        raise UnsupportedModelError(f"attention of {config.model_type} is not causal")
    if call.has_mask:
        raise UnsupportedModelError(
            f"{config.model_type} builds an attention mask of its own, which a paged cache cannot honour"
        )
    for name, value in call.keywords.items():
        if value is not None and name not in HARMLESS | UNDERSTOOD:
            raise UnsupportedModelError(f"attention of {config.model_type} depends on {name!r}, which is not supported")


def _window(config: Any, call: AttentionCall, index: int, max_model_len: int) -> int | None:
    """The layer's window: as passed, or as its layer type says. Where it may hide in a mask, it must not matter."""
    if call.sliding_window is not None:
        return call.sliding_window
    configured = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    if layer_types:
        layer = getattr(call.module, "layer_idx", None)
        return configured if layer_types[index if layer is None else layer] == "sliding_attention" else None
    if configured and getattr(config, "use_sliding_window", True) and max_model_len > configured:
        raise UnsupportedModelError(
            f"{config.model_type} has a sliding window of {configured} tokens that lives only in a mask: "
            f"set --max-model-len to at most {configured}"
        )
    return None
