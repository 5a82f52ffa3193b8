"""Requests' wishes that change single logits: allowed ids, bad words, min_tokens, bias, and the three penalties.

Process: worker. Knows: which (row, token) pairs are touched, worked out in numpy; only those are read and written, whatever the
vocabulary's size. Does not know: how a token is then chosen.
Mirrors: vllm/v1/sample/logits_processor/, vllm/v1/sample/ops/{penalties,bad_words}.py
"""

import numpy as np
import numpy.typing as npt
import torch

from vllm_lite.worker.attention.metadata import Ints
from vllm_lite.worker.input_batch import InputBatch
from vllm_lite.worker.sampling_columns import Edits
from vllm_lite.worker.step_buffer import upload


def apply_edits(logits: torch.Tensor, rows: Ints, which: Ints, batch: InputBatch) -> None:
    """Change `logits` [n, V] in place for the indices `which` into the n that have an Edits entry."""
    vocab = logits.shape[1]
    banned: list[Ints] = []
    biased: list[Ints] = []
    biases: list[npt.NDArray[np.float32]] = []
    for index in which.tolist():
        row = int(rows[index])
        edits = batch.sampling.edits[row]
        if edits.allowed_ids is not None:
            allowed = upload(edits.allowed_ids, logits.device)
            kept = logits[index, allowed]
            logits[index] = -torch.inf
            logits[index, allowed] = kept
        banned.append(_banned_ids(edits, row, batch) + index * vocab)
        biased.append(edits.bias_ids + index * vocab)
        biases.append(edits.biases)
    flat, device = logits.view(-1), logits.device
    flat[upload(np.concatenate(biased), device)] += upload(np.concatenate(biases), device).to(logits.dtype)
    flat[upload(np.concatenate(banned), device)] = -torch.inf


def apply_penalties(logits: torch.Tensor, rows: Ints, which: Ints, batch: InputBatch) -> None:
    """Change `logits` [n, V] in place for the indices `which` into the n.

    Tokens of prompt and answer: positive logits are divided by repetition_penalty, others multiplied. Tokens of the answer:
    less frequency_penalty for each time they occur, and less presence_penalty once.
    """
    vocab, columns = logits.shape[1], batch.sampling
    own = rows[which]
    counts = batch.num_tokens[own]
    owner = np.repeat(np.arange(len(own)), counts)
    positions = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    keys = owner * vocab + batch.token_ids[own[owner], positions]
    in_answer = positions >= batch.num_prompt_tokens[own][owner]
    pairs, inverse = np.unique(keys, return_inverse=True)
    occurrences = np.bincount(inverse, weights=in_answer, minlength=len(pairs))
    request = own[pairs // vocab]
    drop = columns.frequency_penalty[request] * occurrences + columns.presence_penalty[request] * (occurrences > 0)
    flat, device = logits.view(-1), logits.device
    index = upload(which[pairs // vocab] * vocab + pairs % vocab, device)
    repetition = upload(columns.repetition_penalty[request], device).to(logits.dtype)
    values = flat[index]
    flat[index] = torch.where(values > 0, values / repetition, values * repetition) - upload(drop, device).to(logits.dtype)


def _banned_ids(edits: Edits, row: int, batch: InputBatch) -> Ints:
    """What may not come next: the last token of a bad word whose beginning just came, and stop tokens before min_tokens."""
    end, start = int(batch.num_tokens[row]), int(batch.num_prompt_tokens[row])
    tokens = batch.token_ids[row]
    banned = [
        word[-1]
        for word in edits.bad_words
        if end - start >= len(word) - 1 and tokens[end - len(word) + 1 : end].tolist() == word[:-1]
    ]
    stop_ids = edits.stop_ids if end - start < edits.min_tokens else edits.stop_ids[:0]
    return np.concatenate([np.array(banned, np.int64), stop_ids])
