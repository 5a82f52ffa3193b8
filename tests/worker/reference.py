"""What transformers itself says: the answers every schedule must give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM


def load_reference(folder: Path, dtype: str) -> Any:
    """The folder's model with transformers' own attention, in its plainest form."""
    options = {"dtype": getattr(torch, dtype), "attn_implementation": "eager", "experts_implementation": "eager"}
    return AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def generate(model: Any, prompt: list[int], count: int) -> list[int]:
    """`count` greedy tokens after `prompt`, whatever they are."""
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist()


def logprobs(model: Any, tokens: list[int]) -> torch.Tensor:
    """Log probabilities [len(tokens), vocabulary] after each token."""
    with torch.inference_mode():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].log_softmax(-1)
