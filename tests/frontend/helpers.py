"""Small things that the front end's tests share."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from vllm_lite import AsyncEngineArgs, RequestOutputKind, SamplingParams, VllmConfig
from vllm_lite.config.tiny_model import byte_symbols
from vllm_lite.frontend.tokenizer import Tokenizer
from vllm_lite.outputs import RequestOutput
from vllm_lite.wire.messages import EngineCoreOutput, EngineCoreRequest

DELTA, CUMULATIVE, FINAL_ONLY = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY
EOS = 257  # of the tiny model


def toy_args(model: Path, *, step_time: float | None = None, **options: Any) -> AsyncEngineArgs:
    """Engine options for the toy executor with the tiny model's files."""
    additional = {} if step_time is None else {"toy_step_time": step_time}
    options = {"max_model_len": 512, "distributed_executor_backend": "toy", "additional_config": additional, **options}
    return AsyncEngineArgs(model=str(model), **options)


def toy_config(model: Path, **options: Any) -> VllmConfig:
    return toy_args(model, **options).create_engine_config()


def request(request_id: str = "r", prompt_token_ids: list[int] | None = None, **params: Any) -> EngineCoreRequest:
    """A request as the input processor makes it, its external id that of the caller."""
    return EngineCoreRequest(
        request_id,
        [1, 2, 3] if prompt_token_ids is None else prompt_token_ids,
        None,
        SamplingParams(**{"max_tokens": 100, "output_kind": DELTA, **params}),
        None,
        0.0,
        external_req_id=f"ext-{request_id}",
    )


def row(request_id: str, token_ids: list[int], **fields: Any) -> EngineCoreOutput:
    return EngineCoreOutput(request_id, token_ids, **fields)


def ids(text: str) -> list[int]:
    """The tiny tokenizer's ids of `text`: its bytes."""
    return list(text.encode())


def stop(pid: int) -> None:
    """Stop a child; comes back when every thread of it stands."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def token_ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def word_tokenizer(folder: Path, words: list[str], special: tuple[str, ...] = ("<eos>",)) -> tuple[Tokenizer, dict[str, int]]:
    """A byte-level tokenizer that has these words as tokens, and their ids; a lone byte is written as its surrogate."""
    symbols = byte_symbols()
    vocab = {symbol: byte for byte, symbol in enumerate(symbols)}
    spelled = {word: "".join(symbols[byte] for byte in word.encode(errors="surrogateescape")) for word in words}
    for spelling in spelled.values():
        vocab.setdefault(spelling, len(vocab))
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer = save_tokenizer(folder, backend, {"eos_token": special[0]})
    return tokenizer, {word: vocab[spelling] for word, spelling in spelled.items()}


def piece_tokenizer(folder: Path, pieces: list[str]) -> tuple[Tokenizer, dict[str, int]]:
    """A tokenizer in the manner of sentencepiece: words begin with a mark, rare characters are bytes like <0xE6>."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for token in [f"<0x{byte:02X}>" for byte in range(256)] + pieces:
        vocab.setdefault(token, len(vocab))
    backend = Backend(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return save_tokenizer(folder, backend, {"bos_token": "<s>", "eos_token": "</s>"}), vocab


def save_tokenizer(folder: Path, backend: Backend, settings: dict[str, Any]) -> Tokenizer:
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return Tokenizer(folder)
