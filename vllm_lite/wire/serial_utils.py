"""Structs to msgpack and back, numpy arrays included.

Process: all that share a wire. Knows: msgspec's types and numpy arrays. Does not know: sockets, or what a message means. There
is no pickle in either direction: what cannot be encoded raises where it is encoded.
An array travels as an extension value, so that it is found again even where a field's type is Any.
Mirrors: vllm/v1/serial_utils.py
"""

from __future__ import annotations

import re
import typing
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

Buffer = bytes | bytearray | memoryview

_EXT_ARRAY = 1
_DTYPE = re.compile(r"[<>|][biufc]\d{1,2}")  # numbers and booleans; numpy would evaluate much more than that

T = TypeVar("T")


class _Array(msgspec.Struct, array_like=True):
    """`data` is in C order."""

    dtype: str
    shape: list[int]
    data: bytes


class MsgpackEncoder:
    """Encodes one message at a time; not for several threads."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._encode_other)
        self._array_encoder = msgspec.msgpack.Encoder()

    def encode(self, obj: Any) -> list[Buffer]:
        """The message as a socket sends it: one frame.

        Raises TypeError for whatever has no place on the wire, ints beyond 64 bits and lone surrogates included.
        """
        try:
            return [self._encoder.encode(obj)]
        except (OverflowError, ValueError, RecursionError) as error:
            raise TypeError(f"cannot be encoded: {error}") from error

    def _encode_other(self, obj: Any) -> Any:
        if isinstance(obj, float):  # numpy's float64 is one, and passes wherever a float is asked for
            return float(obj)
        if not isinstance(obj, np.ndarray) or not _DTYPE.fullmatch(obj.dtype.str):
            raise TypeError(f"{_type_name(obj)} cannot be encoded")
        array = _Array(obj.dtype.str, list(obj.shape), obj.tobytes())
        return msgspec.msgpack.Ext(_EXT_ARRAY, self._array_encoder.encode(array))


class MsgpackDecoder(Generic[T]):
    """Decodes messages of one type; without a type, to lists, dicts, numbers, strings and arrays. Not for several threads."""

    def __init__(self, message_type: type[T] | None = None) -> None:
        expected: Any = Any if message_type is None else message_type
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(
            expected, ext_hook=self._decode_ext, dec_hook=_check_array
        )
        self._array_decoder = msgspec.msgpack.Decoder(_Array)

    def decode(self, frames: Buffer | Sequence[Buffer]) -> T:
        """The message, which is one frame; its arrays are read-only.

        Raises msgspec.DecodeError for anything else than an encoded message of this type.
        """
        try:
            return self._decoder.decode(frames if isinstance(frames, bytes | bytearray | memoryview) else frames[0])
        except msgspec.DecodeError:
            raise
        except (ValueError, TypeError, IndexError, OverflowError, RecursionError) as error:
            raise msgspec.DecodeError(f"not a message: {error}") from error

    def _decode_ext(self, code: int, data: memoryview) -> Any:
        if code != _EXT_ARRAY:
            raise ValueError(f"unknown extension code {code}")
        array = self._array_decoder.decode(data)
        if not _DTYPE.fullmatch(array.dtype):
            raise ValueError(f"not a dtype of numbers: {array.dtype!r}")
        return np.frombuffer(array.data, dtype=np.dtype(array.dtype)).reshape(array.shape)


def _check_array(expected: Any, obj: Any) -> Any:
    origin = typing.get_origin(expected) or expected
    if isinstance(origin, type) and isinstance(obj, origin):
        return obj
    raise TypeError(f"expected {expected}, got {_type_name(obj)}")


def _type_name(obj: Any) -> str:
    dtype = f" of dtype {obj.dtype}" if isinstance(obj, np.ndarray) else ""
    return f"an object of type {type(obj).__module__}.{type(obj).__qualname__}{dtype}"
