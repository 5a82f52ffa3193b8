"""Structs to frames and back: msgpack, with big numpy arrays as frames of their own.

Process: all that share a wire. Knows: msgspec's types and numpy arrays. Does not know: sockets, or what a message means. There
is no pickle in either direction: what cannot be encoded raises where it is encoded.
An array travels as an extension value, so that it is found again even where a field's type is Any.
Mirrors: vllm/v1/serial_utils.py
"""

import re
import typing
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

Buffer = bytes | bytearray | memoryview

INLINE_BELOW = 256  # bytes; a smaller array is copied into the msgpack frame, since a frame of its own costs more
_EXT_ARRAY = 1
_DTYPE = re.compile(r"[<>|][biufc]\d{1,2}")  # numbers and booleans; numpy would evaluate much more than that

T = TypeVar("T")


class _ArrayHead(msgspec.Struct, array_like=True):
    """`data` is the array's bytes (C order), or the index of the frame that holds them."""

    dtype: str
    shape: list[int]
    data: bytes | int


class MsgpackEncoder:
    """Encodes one message at a time; not for several threads, since the frames of one message are gathered on the side."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._encode_other)
        self._head_encoder = msgspec.msgpack.Encoder()
        self._frames: list[Buffer] = []

    def encode(self, obj: Any) -> list[Buffer]:
        """Frame 0 is msgpack, the others are the raw bytes of arrays of 256 bytes and more (views: keep them unchanged).

        Raises TypeError for whatever has no place on the wire, ints beyond 64 bits and lone surrogates included.
        """
        self._frames = [b""]
        try:
            self._frames[0] = self._encoder.encode(obj)
        except (OverflowError, ValueError, RecursionError) as error:
            raise TypeError(f"cannot be encoded: {error}") from error
        frames, self._frames = self._frames, []
        return frames

    def _encode_other(self, obj: Any) -> Any:
        if isinstance(obj, float):  # numpy's float64 is one, and passes wherever a float is asked for
            return float(obj)
        if not isinstance(obj, np.ndarray) or not _DTYPE.fullmatch(obj.dtype.str):
            raise TypeError(f"{_type_name(obj)} cannot be encoded")
        data: bytes | int
        if obj.nbytes < INLINE_BELOW:
            data = obj.tobytes()
        else:
            data = len(self._frames)
            self._frames.append(np.ascontiguousarray(obj).reshape(-1).view(np.uint8).data)
        head = _ArrayHead(obj.dtype.str, list(obj.shape), data)
        return msgspec.msgpack.Ext(_EXT_ARRAY, self._head_encoder.encode(head))


class MsgpackDecoder(Generic[T]):
    """Decodes messages of one type; without a type, to lists, dicts, numbers, strings and arrays. Not for several threads."""

    def __init__(self, message_type: type[T] | None = None) -> None:
        expected: Any = Any if message_type is None else message_type
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(
            expected, ext_hook=self._decode_ext, dec_hook=_check_array
        )
        self._head_decoder = msgspec.msgpack.Decoder(_ArrayHead)
        self._frames: Sequence[Buffer] = ()

    def decode(self, frames: Buffer | Sequence[Buffer]) -> T:
        """The message. Raises msgspec.DecodeError for anything else than an encoded message of this type.

        Big arrays are read-only views that keep their frame alive.
        """
        self._frames = [frames] if isinstance(frames, bytes | bytearray | memoryview) else frames
        try:
            return self._decoder.decode(self._frames[0])
        except msgspec.DecodeError:
            raise
        except (ValueError, TypeError, IndexError, OverflowError, RecursionError) as error:
            raise msgspec.DecodeError(f"not a message: {error}") from error
        finally:
            self._frames = ()

    def _decode_ext(self, code: int, data: memoryview) -> Any:
        if code != _EXT_ARRAY:
            raise ValueError(f"unknown extension code {code}")
        head = self._head_decoder.decode(data)
        if not _DTYPE.fullmatch(head.dtype):
            raise ValueError(f"not a dtype of numbers: {head.dtype!r}")
        if isinstance(head.data, bytes):
            array = np.frombuffer(head.data, dtype=np.dtype(head.dtype))
        elif 0 < head.data < len(self._frames):
            array = np.frombuffer(memoryview(self._frames[head.data]), dtype=np.dtype(head.dtype))
        else:
            raise ValueError(f"no frame {head.data} in a message of {len(self._frames)}")
        return array.reshape(head.shape)


def _check_array(expected: Any, obj: Any) -> Any:
    origin = typing.get_origin(expected) or expected
    if isinstance(origin, type) and isinstance(obj, origin):
        return obj
    raise TypeError(f"expected {expected}, got {_type_name(obj)}")


def _type_name(obj: Any) -> str:
    dtype = f" of dtype {obj.dtype}" if isinstance(obj, np.ndarray) else ""
    return f"an object of type {type(obj).__module__}.{type(obj).__qualname__}{dtype}"
