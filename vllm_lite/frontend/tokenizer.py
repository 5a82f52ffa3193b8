"""Text to token ids and back, from the model folder's tokenizer.json.

Process: front end. Knows: the `tokenizers` library (Rust, no torch) and the files that transformers writes beside it. Does not
know: transformers, whose tokenizer classes cost a second to import; what they add to tokenizer.json is read here.
Mirrors: vllm/tokenizers/ (its Hugging Face half)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers.decoders import DecodeStream
from tokenizers.processors import TemplateProcessing

from vllm_lite.config import ModelConfig
from vllm_lite.config.tiny_model import byte_symbols
from vllm_lite.exceptions import UnsupportedModelError
from vllm_lite.frontend.chat_template import ChatTemplates


class Tokenizer:
    """One model's tokenizer. Safe for several threads at once: nothing changes after construction but caches.

    Raises UnsupportedModelError where the folder has no tokenizer.json.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.exists():
            raise UnsupportedModelError(
                f"{folder} has no tokenizer.json. Save one with transformers (AutoTokenizer.from_pretrained(...)."
                "save_pretrained(folder)), give --tokenizer another folder, or use --skip-tokenizer-init"
            )
        self._backend = Backend.from_file(str(path))
        self._backend.no_truncation()
        self._backend.no_padding()
        settings = _read_json(folder / "tokenizer_config.json")
        self.special_tokens = _special_tokens(settings, _read_json(folder / "special_tokens_map.json"))
        self._frame_with_special_tokens(settings)
        self.chat_templates = ChatTemplates(_read_templates(folder, settings), self.special_tokens)
        decoder = self._backend.decoder
        self.is_byte_level = decoder is not None and _is_byte_level(json.loads(decoder.__getstate__()))
        self._special_ids = {i for i, token in self._backend.get_added_tokens_decoder().items() if token.special}
        self._pieces: dict[bool, PieceTable] = {}

    @classmethod
    def from_config(cls, model_config: ModelConfig) -> Tokenizer:
        """The tokenizer of `model_config`: its own where `tokenizer` names one, else the model's."""
        if model_config.tokenizer is None:
            return cls(Path(model_config.model_path))
        from vllm_lite.config.model_files import resolve_model

        return cls(resolve_model(model_config.tokenizer))

    @property
    def vocab_size(self) -> int:
        """How many ids have a token; the model's own vocabulary may be padded beyond it."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def eos_token_id(self) -> int | None:
        """The id of the tokenizer's end token."""
        token = self.special_tokens.get("eos_token")
        found = None if token is None else self._backend.token_to_id(token)
        return None if found is None else int(found)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`; blocks for about a second per 10 MB, without holding the interpreter."""
        ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `token_ids` on their own; ids without a token count for nothing."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def pieces(self, skip_special_tokens: bool) -> PieceTable:
        """The table of each token's text or bytes; only for byte-level tokenizers."""
        table = self._pieces.get(skip_special_tokens)
        if table is None:
            skipped = self._special_ids if skip_special_tokens else set()
            table = self._pieces[skip_special_tokens] = PieceTable(self._backend, skipped)
        return table

    def decode_stream(self, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> Callable[[int], str | None]:
        """The library's own incremental decoder, primed with the prompt: from a token id to the text that it completes."""
        stream = DecodeStream(ids=list(prompt_token_ids), skip_special_tokens=skip_special_tokens)
        return partial(stream.step, self._backend)

    def _frame_with_special_tokens(self, settings: Mapping[str, Any]) -> None:
        """Where tokenizer_config.json says whether texts begin with bos and end with eos, it overrides tokenizer.json."""
        if "add_bos_token" not in settings and "add_eos_token" not in settings:
            return
        bos = self.special_tokens.get("bos_token") if settings.get("add_bos_token") else None
        eos = self.special_tokens.get("eos_token") if settings.get("add_eos_token") else None
        known = [(token, self._backend.token_to_id(token)) for token in (bos, eos) if token is not None]
        if any(token_id is None for _, token_id in known):
            raise UnsupportedModelError("tokenizer_config.json asks for a bos or eos token that tokenizer.json does not have")
        single = [part for part in (bos, "$A", eos) if part is not None]
        self._backend.post_processor = TemplateProcessing(single=single, pair=[*single, "$B:1"], special_tokens=known)


class PieceTable(dict[int, "str | bytes"]):
    """Token id -> what it adds to a text, filled as ids are first seen (a dict lookup is then all it costs).

    str where the token is whole characters, bytes where it holds part of one, "" where it adds nothing: a skipped special
    token, or an id that has no token.
    """

    def __init__(self, backend: Backend, skipped: set[int]) -> None:
        super().__init__()
        self._backend = backend
        self._skipped = skipped
        self._byte_of = {symbol: byte for byte, symbol in enumerate(byte_symbols())}

    def __missing__(self, token_id: int) -> str | bytes:
        piece = self[token_id] = "" if token_id in self._skipped else self._piece(token_id)
        return piece

    def _piece(self, token_id: int) -> str | bytes:
        token: str | None = self._backend.id_to_token(token_id)
        if token is None:
            return ""
        try:
            raw = bytes(self._byte_of[symbol] for symbol in token)
        except KeyError:  # not all of the byte alphabet: an added token, which stands for its own text
            return token
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw


def _is_byte_level(decoder: Mapping[str, Any]) -> bool:
    """True where decoding is nothing but joining the tokens' bytes. `decoder` is its JSON (the state it is pickled with)."""
    if decoder["type"] == "Sequence":
        return len(decoder["decoders"]) == 1 and _is_byte_level(decoder["decoders"][0])
    return bool(decoder["type"] == "ByteLevel")


def _special_tokens(settings: Mapping[str, Any], tokens_map: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and their like, by name; each is a string or an object with its content."""
    found = {}
    for name, value in {**tokens_map, **settings}.items():
        token = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(token, str):
            found[name] = token
    return found


def _read_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name, from wherever transformers of one age or another has put them."""
    templates: dict[str, str] = {}
    for holder in (settings, _read_json(folder / "chat_template.json")):
        value = holder.get("chat_template")
        if isinstance(value, str):
            templates["default"] = value
        elif isinstance(value, list):
            templates.update({entry["name"]: entry["template"] for entry in value})
    for path in (folder / "chat_template.jinja", *sorted((folder / "additional_chat_templates").glob("*.jinja"))):
        if path.exists():
            name = "default" if path.parent == folder else path.stem
            templates[name] = path.read_text(encoding="utf-8")
    return templates


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    loaded = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(loaded, dict):
        raise UnsupportedModelError(f"{path} does not hold a JSON object")
    return loaded
